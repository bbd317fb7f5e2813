"""Bad input in the study file and in task files."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

from bad_input_changes import Case, Change, both, line, mood, rows, split, task, training, write, yaml

GLUE = "CoLA: {layout: glue, train: cola.tsv, test: cola_test.tsv}"
COLA = both(task(GLUE), rows("cola.tsv", "src\t{c}\t\tsentence {n}"), write("cola_test.tsv", "index\tsentence\n0\ta\n"))
TABLE = "topic: {layout: table, train: topic.csv, columns: {id: id, text: sentence, label: label}}"
TEMPLATE = 'topic: {layout: table, train: topic.csv, columns: {id: id}, template: "{title} {body}"}'
GROUPED = "topic: {layout: table, train: topic.csv, columns: {text: sentence}}"
HUB = "topic: {layout: hub, dataset: nobody/no-such-set, train: train}"
OWN = "function: weighted_auc, needs: probabilities, higher_is_better: true"


def topic(column: str, cell: str) -> Change:
    """A table with a further column, in which ``{n}`` is the row's number."""
    lines = [f"sentence {n},{'abc'[n % 3]},{cell.format(n=n)}" for n in range(12)]
    return write("topic.csv", "\n".join([f"sentence,label,{column}", *lines]) + "\n")


FILES: dict[str, Sequence[Case]] = {
    "The study file": (
        Case("the study file is not there", command="tune study.yml"),
        Case(
            "the study file is a folder",
            command="tune studies-here",
            change=lambda folder: (folder / "studies-here").mkdir(),
        ),
        Case("a full-width colon, as Chinese keyboards write it", yaml("study: moods", "study：moods")),
        Case("the study file is empty", write("study.yaml", "")),
        Case("the study file is not YAML", write("study.yaml", "study: moods\nbackbone: [a, b\n")),
        Case("a tab stands in the indentation", yaml("    train: mood", "\ttrain: mood")),
        Case("the study file is not UTF-8", write("study.yaml", "study: 心情".encode("gb18030"))),
        Case("a key stands twice", lambda folder: (folder / "study.yaml").open("a").write("study: again\n")),
        Case("a key is unknown", yaml("search:\n", "serach:\n")),
        Case("a key is missing", yaml("backbone: backbone\n", "")),
        Case("a value is of the wrong type", yaml("trials: 1", "trials: many")),
        Case("the study's name is no name of a folder", yaml("study: moods", "study: my moods/1")),
        Case("the metric is unknown", yaml("macro_f1", "macro-f1")),
        Case("the metric has another name here", yaml("macro_f1", "qwk")),
        Case("a submission is like nothing", mood("submission: {}")),
        Case(
            "an own metric does not say what it needs",
            both(
                write("metric.py", ""),
                yaml("macro_f1", f"{{file: metric.py, {OWN.replace('probabilities', 'logits')}}}"),
            ),
        ),
        Case("a metric of numbers is reported beside one of classes", mood("report: [accuracy, rmse]")),
        Case("`f1` on three classes", yaml("macro_f1", "f1")),
        Case(
            "folds beside other validation rows",
            both(
                mood("validation: mood_dev.tsv"),
                write("mood_dev.tsv", "d0\tsun\tglad\n"),
                yaml("search:\n", "split: {folds: 5, validation: 0.2}\nsearch:\n"),
            ),
        ),
        Case(
            "several things at once",
            both(
                yaml("trials: 1", "trials: 0"),
                yaml("mood_train", "mod_train"),
                training("learning_rat: 1.0e-4"),
                yaml("macro_f1", "f3"),
            ),
        ),
    ),
    "Task files": (
        Case("a task file is not there", yaml("mood_train", "mood_trian")),
        Case("several test files stand in a list", yaml("test: mood_test.tsv", "test: [mood_test.tsv, mood_pool.tsv]")),
        Case("a task file is empty", write("mood_train.tsv", "")),
        Case("a line has too few columns", line("mood_train.tsv", 7, "t6\tonly a text")),
        Case("every line has a column too many", rows("mood_test.tsv", "{n}\ttext\tcalm")),
        Case("a label is empty", line("mood_train.tsv", 3, "t2\train\t")),
        Case("a text to train on is empty", line("mood_train.tsv", 3, "t2\t \tsad")),
        Case("an id stands twice among rows to predict", line("mood_test.tsv", 5, "t1\tsun")),
        Case("a task file is binary", write("mood_train.tsv", b"PK\x03\x04\x00\x00rows")),
        Case("a task file is in GB18030", write("mood_train.tsv", "t0\t今天很开心\tglad\n".encode("gb18030"))),
        Case(
            "a task file is in Git LFS",
            write("mood_train.tsv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"),
        ),
        Case("a path has an environment variable that is not set", mood("validation: $TUTTI_NO_DATA/mood_dev.tsv")),
        Case("labels are amounts, and the metric is one of classes", rows("mood_train.tsv", "{n}\tx{n}\t{n}.25")),
        Case(
            "a validation label was never trained",
            both(mood("validation: mood_dev.tsv"), write("mood_dev.tsv", "d0\tsun\tglad\nd1\tno\tangry\n")),
        ),
        Case(
            "validation labels are written otherwise",
            both(
                mood("validation: mood_dev.tsv"),
                rows("mood_train.tsv", "{n}\tx{n}\t{n}.0", 3),
                write("mood_dev.tsv", "d0\tsun\t0\nd1\tno\t1\n"),
            ),
        ),
        Case("every validation row is a training row", mood("validation: mood_train.tsv")),
        Case("a task has one class", write("mood_train.tsv", "0\tx\ta\n1\ty\ta\n")),
        Case(
            "the split takes a class's last row",
            both(
                yaml("search:\n", "split: {validation: 0.9}\nsearch:\n"),
                write("mood_train.tsv", "".join(f"{n}\tx{n}\t{'ab'[n < 2]}\n" for n in range(40))),
            ),
        ),
        Case("no class has two rows to split", write("mood_train.tsv", "0\tx\ta\n1\ty\tb\n")),
        Case(
            "a label is no number where the metric asks for numbers",
            both(yaml("macro_f1", "pearson"), write("mood_train.tsv", "0\tx\t4.5\n1\ty\tglad\n2\tz\t-1\n")),
        ),
        Case(
            "labels that are numbers are all the same",
            both(yaml("macro_f1", "pearson"), rows("mood_train.tsv", "{n}\ttext {n}\t2.5")),
        ),
        Case(
            "too few rows of numbers to split",
            both(yaml("macro_f1", "pearson"), write("mood_train.tsv", "0\tx\t4.5\n1\ty\t3\n")),
        ),
        Case(
            "a class has one row, and the study has folds",
            both(
                yaml("search:\n", "split: {folds: 3}\nsearch:\n"),
                write("mood_train.tsv", "0\tx\ta\n1\ty\tb\n2\tz\ta\n"),
            ),
        ),
        Case("there are more folds than rows", yaml("search:\n", "split: {folds: 31}\nsearch:\n")),
        Case(
            "a table lacks the column of groups",
            both(task(GROUPED), split("group: prompt_id"), topic("promt_id", "p{n}")),
        ),
        Case("a layout without names of columns has no column of groups", split("group: prompt_id")),
        Case("groups by a second text that no row has", split("group: text_b")),
        Case("groups of a task that the study does not have", split("group: {moods: text}")),
        Case("a fold column has one fold", both(task(GROUPED), split("fold_column: part"), topic("part", "0"))),
        Case(
            "a row of the fold column is empty",
            both(
                task(GROUPED), split("fold_column: part"), topic("part", "{n}"), line("topic.csv", 2, "sentence 0,a,")
            ),
        ),
        Case(
            "a fold column has other folds than asked for",
            both(task(GROUPED), split("fold_column: part, folds: 5"), topic("part", "{n}")),
        ),
        Case(
            "a row's weight is no number",
            both(task(GROUPED.replace("topic.csv,", "topic.csv, row_weight: sure,")), topic("sure", "high")),
        ),
        Case(
            "a group is in the training and in the validation file",
            both(
                task(GROUPED.replace("topic.csv,", "topic.csv, validation: dev.csv,")),
                split("group: prompt_id"),
                topic("prompt_id", "p{n}"),
                write("dev.csv", "sentence,label,prompt_id\nnew,a,p1\n"),
            ),
        ),
        Case("a file of soft labels is another file", mood("extra_train: [{path: mood_pool.tsv, labels: soft}]")),
        Case(
            "soft labels in a task whose labels are numbers",
            both(
                yaml("metric: macro_f1", "metric: pearson"), mood("extra_train: [{path: mood_pool.tsv, labels: soft}]")
            ),
        ),
        Case("a GLUE task's name says no kind", yaml("layout: competition", "layout: glue")),
        Case(
            "a key of another layout",
            both(task(TABLE.replace("columns:", "pair: true, columns:")), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a metric of classes for GLUE's STS-B",
            both(task("STS-B: {layout: glue, train: stsb.tsv}"), write("stsb.tsv", "")),
        ),
        Case("a GLUE test file lacks its header", both(COLA, write("cola_test.tsv", "0\tBill slept.\n"))),
        Case(
            "a table lacks a column",
            both(
                task(TABLE),
                rows("topic.csv", "{n},text {n},{c}"),
                lambda folder: write("topic.csv", "id,sentences,label\n" + (folder / "topic.csv").read_text())(folder),
            ),
        ),
        Case(
            "ids of a table are numbers whose last digits were lost",
            both(
                task("topic: {layout: table, train: topic.jsonl, columns: {id: id}}"),
                write("topic.jsonl", '{"id": 1e18, "text": "a", "label": "x"}\n{"id": 7, "text": "b", "label": "y"}\n'),
            ),
        ),
        Case(
            "a template names a column that the table lacks",
            both(task(TEMPLATE), write("topic.csv", "id,titel,body,label\n0,a,b,x\n1,c,d,y\n")),
        ),
        Case(
            "a template without columns",
            both(task(TEMPLATE.replace("{title} {body}", "title")), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a text from a template and from a column",
            both(task(TABLE.replace("columns", 'template: "{title}", columns')), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a CSV line has a comma too many",
            both(task(TABLE), write("topic.csv", "id,sentence,label\n0,a,x\n1,b, c,y\n")),
        ),
        Case(
            "a table has an unknown suffix",
            both(task(TABLE.replace("csv", "xls")), write("topic.xls", b"\xd0\xcf\x11\xe0")),
        ),
        Case(
            "a workbook of Excel has a password",
            both(task(TABLE.replace("csv", "xlsx")), write("topic.xlsx", b"\xd0\xcf\x11\xe0")),
        ),
        Case(
            "a packed file ends too early",
            both(
                task(TABLE.replace("csv", "csv.gz")),
                write("topic.csv.gz", gzip.compress(b"id,sentence,label\n" * 99, mtime=0)[:-20]),
            ),
        ),
        Case(
            "a JSON file is one object",
            both(
                task(TABLE.replace("csv", "json")), write("topic.json", '{\n  "rows": [\n    {"sentence": "a"}\n]}\n')
            ),
        ),
        Case(
            "rows have several labels",
            both(
                task(TABLE.replace("csv", "jsonl")),
                write("topic.jsonl", '{"sentence": "a", "label": ["x", "y"]}\n' * 12),
            ),
        ),
        Case("a data set of the hub is not there", task(HUB)),
        Case("the layout hub without a data set", task("topic: {layout: hub, train: train}")),
    ),
}
