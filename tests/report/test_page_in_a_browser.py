"""The report in a browser: it sorts, switches runs and themes, fits a phone, and stays to
itself.
"""

import json
import shutil

import numpy as np
import pytest

from helpers.report_runs import digits_runs, hostile_csv, hostile_run
from macc.report import page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.xdist_group("report"),
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no Chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)",
    ),
]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    paths = [*digits_runs(), hostile_run(folder), hostile_csv(folder)]
    return page.write(paths, folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    # Both paths are given: selenium looks for nothing and downloads nothing.
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, address):
    show(browser, *SIZES["desktop"], "light")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)
    browser.execute_script("try { localStorage.clear() } catch {}")
    browser.get(address)
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def show(driver, width, height, theme):
    """A window of a size, on a system with a theme."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {
            "features": [
                {"name": "prefers-color-scheme", "value": theme},
                # Without smooth scrolling, under which a click may miss.
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ]
        },
    )


def column(driver, table, index):
    return driver.execute_script(
        "return [...document.getElementById(arguments[0]).tBodies[0].rows]"
        ".map(row => row.cells[arguments[1]].dataset.value)",
        table,
        index,
    )


def test_a_heading_sorts_its_table_both_ways(opened):
    heading = "#classes-0 thead th:nth-child({}) button"
    before = column(opened, "classes-1", 5)
    opened.find_element("css selector", heading.format(6)).send_keys("\n")
    up = [float(value) for value in column(opened, "classes-0", 5)]
    assert len(set(up)) > 5
    assert up == sorted(up)
    cell = opened.find_element("css selector", "#classes-0 thead th:nth-child(6)")
    assert cell.get_attribute("aria-sort") == "ascending"

    opened.find_element("css selector", heading.format(6)).send_keys(" ")
    assert [float(value) for value in column(opened, "classes-0", 5)] == up[::-1]
    opened.find_element("css selector", heading.format(3)).click()
    recall = [float(value) for value in column(opened, "classes-0", 2)]
    assert recall == sorted(recall, reverse=True)
    assert cell.get_attribute("aria-sort") is None
    assert column(opened, "classes-1", 5) == before

    opened.find_element("css selector", heading.format(1)).click()
    names = [e.text for e in opened.find_elements("css selector", "#classes-0 tbody th")]
    assert names == [str(k) for k in range(10)]


def test_runs_are_switched_by_mouse_and_keys(opened):
    def visible():
        articles = opened.find_elements("css selector", "article.run")
        return [article.get_attribute("id") for article in articles if article.is_displayed()]

    tabs = opened.find_elements("css selector", "[role=tab]")
    assert len(tabs) == 4
    assert visible() == ["run-0"]
    tabs[1].click()
    assert visible() == ["run-1"]
    tabs[1].send_keys(webdriver.Keys.ARROW_RIGHT)
    assert visible() == ["run-2"]
    assert opened.switch_to.active_element == tabs[2]
    tabs[2].send_keys(webdriver.Keys.END)
    tabs[3].send_keys(webdriver.Keys.ARROW_RIGHT)
    assert visible() == ["run-0"]
    assert [tab.get_attribute("tabindex") for tab in tabs] == ["0", "-1", "-1", "-1"]


def background(driver):
    return driver.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_fit_both_widths(opened, size, theme):
    width, height = SIZES[size]
    show(opened, width, height, theme)
    channels = [int(part) for part in background(opened).strip("rgb()").split(",")]
    assert (max(channels) < 60) == (theme == "dark")

    # Nothing but what scrolls by itself is wider than the window.
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    contrasts = opened.execute_script(CONTRASTS)
    assert len(contrasts) > 40
    assert min(contrasts) >= 4.5


# Contrast of every kind of text, of page and figures alike, with what lies behind it.
CONTRASTS = """
const light = (text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => {
    const s = v / 255;
    return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
return [...document.querySelectorAll("p, li, a, button, th, td, .small, .mark, dt, dd, figcaption, svg text")]
  .filter((e) => e.getClientRects().length && e.textContent.trim())
  .map((e) => {
    const style = getComputedStyle(e);
    const a = light(e.tagName === "text" ? style.fill : style.color), b = light(behind(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
"""


def test_the_button_changes_the_theme(opened):
    before = background(opened)
    button = opened.find_element("id", "theme")
    assert button.text == "Dark theme"
    button.click()
    assert background(opened) != before
    assert button.text == "Light theme"
    button.click()
    assert background(opened) == before


def test_no_request_leaves_the_page_and_nothing_hostile_runs(opened, address):
    urls = []
    for entry in opened.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])

    assert address in urls
    assert [url for url in urls if url != address and not url.startswith("data:")] == []
    assert opened.execute_script("return window.hacked") is None
    assert opened.execute_script("return [...document.images].every(i => i.src.startsWith('data:'))")
    injected = """
    const script = document.createElement("script");
    script.textContent = "window.hacked = 5";
    document.body.append(script);
    return window.hacked;
    """
    assert opened.execute_script(injected) is None
    (refused,) = opened.get_log("browser")
    assert "Content Security Policy" in refused["message"]


def test_it_prints_every_run(opened):
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        articles = opened.find_elements("css selector", "article.run")
        assert all(article.is_displayed() for article in articles)
        assert not opened.find_element("css selector", "[role=tablist]").is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# Of every table that is shown: how it lies in its box, and the words that a line end parts.
TABLES = """
return [...document.querySelectorAll("table")].filter((t) => t.getClientRects().length).map((table) => {
  const box = table.parentElement, parted = [];
  const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode()); ) {
    for (const word of node.data.matchAll(/\\w+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1) parted.push(word[0]);
    }
  }
  return {
    key: table.id,
    parted,
    wider: box.scrollWidth > box.clientWidth,
    scrolls: getComputedStyle(box).overflowX === "auto" && box.tabIndex === 0,
    told: box.previousElementSibling.matches(".more") && !box.previousElementSibling.hidden,
    spilt: [...table.querySelectorAll("th, td")].filter((c) => c.scrollWidth > c.clientWidth).length,
  };
});
"""


@pytest.mark.parametrize("width", [1400, 390])
def test_no_table_is_clipped_and_no_word_parted(opened, width):
    show(opened, width, 900, "light")
    opened.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    tables = opened.execute_script(TABLES)

    assert {"table-0", "classes-0"} <= {table["key"] for table in tables}
    assert [word for table in tables for word in table["parted"]] == []
    assert [table["key"] for table in tables if table["spilt"]] == []
    for table in tables:
        assert table["told"] == table["wider"], table["key"]
        assert table["scrolls"]
    if width == 1400:
        assert [table["key"] for table in tables if table["wider"]] == []


def test_the_table_of_two_classes_fits_too(opened, tmp_path):
    generator = np.random.default_rng(0)
    positive = generator.random(400)
    labels = (generator.random(400) < positive).astype(int)
    np.savez(tmp_path / "before.npz", probs=np.stack([1 - positive, positive], 1), labels=labels)
    show(opened, 1400, 900, "light")
    opened.get(page.write([tmp_path / "before.npz"], tmp_path / "two.html").as_uri())
    tables = opened.execute_script(TABLES)

    assert [table["key"] for table in tables if table["wider"] or table["parted"]] == []


def test_no_backtick_is_left_in_the_text(opened):
    text = opened.execute_script(
        "for (const e of document.querySelectorAll('script, style, pre')) e.remove();"
        "return document.body.textContent"
    )

    assert "macc predict" in text
    assert "`" not in text
