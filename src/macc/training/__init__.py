"""Training that can be left alone: recipes, runs that survive being killed, and the paper's selection rule."""
