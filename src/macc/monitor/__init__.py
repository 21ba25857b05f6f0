"""Watching a classifier in operation: windows of time, and an alarm valid after every row."""

from macc.monitor.betting import Alarm as Alarm
from macc.monitor.betting import Evidence as Evidence
from macc.monitor.betting import interval_of_mean as interval_of_mean
from macc.monitor.state import Monitor as Monitor
from macc.monitor.windows import Window as Window
