from __future__ import annotations

import pytest

from tutti.config.recipe import PseudoLabels
from tutti.outputs.pseudo.report import ClassCoverage, PseudoLabelReport, TaskPseudoLabels


def test_labels_of_a_class_that_no_row_tells_of_are_not_counted_as_told():
    judged = ClassCoverage("A", 10, 0.01, 0.99, 0.98, 50)
    unjudged = ClassCoverage("B", 990, 0.99, 0.99, None, 0)
    report = TaskPseudoLabels("t", 1000, 0, 1000, 1000, 0.99, 0.0, None, "t.csv", False, (judged, unjudged), ())
    assert (report.judged_labels, report.labelled, report.expected_precision) == (10, 1000, pytest.approx(0.98))


def test_a_class_that_is_called_like_a_tag_is_text_on_the_page():
    tag = ClassCoverage("<img src=x> & |", 10, 1.0, 0.98, None, 0)
    task = TaskPseudoLabels("t", 10, 0, 10, 10, 0.98, 0.2, tag.label, None, False, (tag,), ())
    page = PseudoLabelReport("s", "r", "now", "all", PseudoLabels(), (task,), (), (), {}).to_markdown()
    assert "| &lt;img src=x> &amp; \\| | 10 |" in page
    assert "the class &lt;img src=x> &amp; | has a share" in page


def test_hard_labels_of_a_task_that_is_called_soft_are_hard():
    task = TaskPseudoLabels("mood.soft", 10, 0, 10, 10, 0.98, 0.0, None, "mood.soft.parquet", False, (), ())
    page = PseudoLabelReport("s", "r", "now", "all", PseudoLabels(), (task,), (), (), {}).to_markdown()
    assert "`extra_train: [{path: mood.soft.parquet}]`" in page
