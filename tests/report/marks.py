"""What a chart draws, for tests."""


def marks(chart, kind):
    """The marks of this kind of all plots of a chart."""
    return [mark for plot in chart.plots for mark in plot.marks if isinstance(mark, kind)]


def words(chart):
    """All that a chart says beside its finding."""
    return " ".join(f"{plot.x.title} {plot.y.title} {plot.legend}" for plot in chart.plots)
