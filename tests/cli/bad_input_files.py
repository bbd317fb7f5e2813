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
        Case(
            "the study file is not there",
            ["study.yml must be a readable study file", "did you mean 'study.yaml'"],
            command="tune study.yml",
        ),
        Case(
            "the study file is a folder",
            ["got a folder"],
            command="tune studies-here",
            change=lambda folder: (folder / "studies-here").mkdir(),
        ),
        Case(
            "a full-width colon, as Chinese keyboards write it",
            ["write the ASCII character for the full-width '：' in line 1, or correct the line"],
            yaml("study: moods", "study：moods"),
        ),
        Case("the study file is empty", ["got an empty file"], write("study.yaml", "")),
        Case(
            "the study file is not YAML",
            ["line 3, column 1", "must be YAML", "begins in line 2"],
            write("study.yaml", "study: moods\nbackbone: [a, b\n"),
        ),
        Case(
            "a tab stands in the indentation",
            ["line 6", "a tab", "put spaces in its place"],
            yaml("    train: mood", "\ttrain: mood"),
        ),
        Case(
            "the study file is not UTF-8",
            ["must be UTF-8 text", "save it as UTF-8"],
            write("study.yaml", "study: 心情".encode("gb18030")),
        ),
        Case(
            "a key stands twice",
            ["line 20", "give each key once", 'duplicate key "study"'],
            lambda folder: (folder / "study.yaml").open("a").write("study: again\n"),
        ),
        Case("a key is unknown", ["study.yaml: serach", "did you mean 'search'"], yaml("search:\n", "serach:\n")),
        Case(
            "a key inside a task is unknown",
            ["tasks.mood.unlabelled", "did you mean 'unlabeled'"],
            yaml("unlabeled:", "unlabelled:"),
        ),
        Case("a key is missing", ["backbone must be given", "add `backbone:`"], yaml("backbone: backbone\n", "")),
        Case(
            "a value is of the wrong type",
            ["search.trials must be a whole number", "'many'"],
            yaml("trials: 1", "trials: many"),
        ),
        Case(
            "the study's name is no name of a folder",
            ["study must be a name", "'my moods/1'"],
            yaml("study: moods", "study: my moods/1"),
        ),
        Case(
            "the metric is unknown",
            ["tasks.mood.metric must be the name of a metric", "'macro-f1'", "did you mean 'macro_f1'"],
            yaml("macro_f1", "macro-f1"),
        ),
        Case(
            "the metric has another name here",
            ["'qwk'", "did you mean 'quadratic_kappa'"],
            yaml("macro_f1", "qwk"),
        ),
        Case(
            "the file of an own metric is not there",
            ["tasks.mood.metric.file must be an existing file"],
            yaml("macro_f1", f"{{file: metric.py, {OWN}}}"),
        ),
        Case(
            "the sample submission of a task is not there",
            ["tasks.mood.submission.like must be an existing file"],
            mood("submission: {like: sample.csv}"),
        ),
        Case(
            "a submission is like nothing",
            ["tasks.mood.submission.like must be given"],
            mood("submission: {}"),
        ),
        Case(
            "an own metric does not say what it needs",
            ["tasks.mood.metric.needs must be one of decisions, probabilities, values", "'logits'"],
            both(
                write("metric.py", ""),
                yaml("macro_f1", f"{{file: metric.py, {OWN.replace('probabilities', 'logits')}}}"),
            ),
        ),
        Case(
            "a metric of numbers is reported beside one of classes",
            ["tasks.mood.report.1 must be a metric for the kind of task", "'rmse'", "take it out"],
            mood("report: [accuracy, rmse]"),
        ),
        Case(
            "the layout is unknown",
            ["competition, glue, table, hub", "'tsv'"],
            yaml("layout: competition", "layout: tsv"),
        ),
        Case(
            "`f1` on three classes",
            ["tasks.mood.metric must be a metric for 3 classes", "'f1', which is for two", "use macro_f1"],
            yaml("macro_f1", "f1"),
        ),
        Case(
            "folds beside other validation rows",
            ["split.validation must be left out with split.folds", "tasks.mood.validation must be left out"],
            both(
                mood("validation: mood_dev.tsv"),
                write("mood_dev.tsv", "d0\tsun\tglad\n"),
                yaml("search:\n", "split: {folds: 5, validation: 0.2}\nsearch:\n"),
            ),
        ),
        Case(
            "several things at once",
            ["search.trials", "tasks.mood.train", "training.learning_rat ", "metric"],
            both(
                yaml("trials: 1", "trials: 0"),
                yaml("mood_train", "mod_train"),
                training("learning_rat: 1.0e-4"),
                yaml("macro_f1", "f3"),
            ),
        ),
    ),
    "Task files": (
        Case(
            "a task file is not there",
            ["mood_trian.tsv", "did you mean 'mood_train.tsv'"],
            yaml("mood_train", "mood_trian"),
        ),
        Case(
            "a task file is a folder",
            ["must be a file", "the folder"],
            both(yaml("mood_test.tsv", "tests"), lambda folder: (folder / "tests").mkdir()),
        ),
        Case(
            "several test files stand in a list",
            [
                "tasks.mood.test must be a file, or a mapping of names to files",
                "a list",
                "{round1: FILE, round2: FILE}",
            ],
            yaml("test: mood_test.tsv", "test: [mood_test.tsv, mood_pool.tsv]"),
        ),
        Case(
            "a task file is empty",
            ["mood_train.tsv must have at least one row", "an empty file"],
            write("mood_train.tsv", ""),
        ),
        Case(
            "a line has too few columns",
            ["mood_train.tsv, line 7", "3 tab-separated columns (id, text, label)", "got 2"],
            line("mood_train.tsv", 7, "t6\tonly a text"),
        ),
        Case(
            "every line has a column too many",
            ["2 tab-separated columns (id, text)", "3 in every line"],
            rows("mood_test.tsv", "{n}\ttext\tcalm"),
        ),
        Case("a label is empty", ["line 3", "have a label that is not empty"], line("mood_train.tsv", 3, "t2\train\t")),
        Case(
            "a text to train on is empty",
            ["line 3", "have a text that is not empty"],
            line("mood_train.tsv", 3, "t2\t \tsad"),
        ),
        Case(
            "an id stands twice",
            ["line 9", "have an id of its own", "which line 2 has already"],
            line("mood_train.tsv", 9, "t1\tsun\tglad"),
        ),
        Case(
            "a task file is binary",
            ["must be a text file", "binary"],
            write("mood_train.tsv", b"PK\x03\x04\x00\x00rows"),
        ),
        Case(
            "a task file is in GB18030",
            ["line 1 must be UTF-8", "iconv -f GB18030 -t UTF-8"],
            write("mood_train.tsv", "t0\t今天很开心\tglad\n".encode("gb18030")),
        ),
        Case(
            "a task file is in UTF-16",
            ["must be UTF-8; got UTF-16"],
            write("mood_train.tsv", "t0\ta\tglad\n".encode("utf-16")),
        ),
        Case(
            "a task file is in Git LFS",
            ["mood_train.tsv must be the file itself", "run `git lfs pull`"],
            write("mood_train.tsv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"),
        ),
        Case(
            "a path has an environment variable that is not set",
            ["tasks.mood.validation must name only environment variables that are set", "set TUTTI_NO_DATA"],
            mood("validation: $TUTTI_NO_DATA/mood_dev.tsv"),
        ),
        Case(
            "labels are amounts, and the metric is one of classes",
            ["12 different numbers in 12 rows", "name a metric of numbers"],
            rows("mood_train.tsv", "{n}\tx{n}\t{n}.25"),
        ),
        Case(
            "a validation label was never trained",
            ["mood_dev.tsv", "'angry' in 1 row"],
            both(mood("validation: mood_dev.tsv"), write("mood_dev.tsv", "d0\tsun\tglad\nd1\tno\tangry\n")),
        ),
        Case(
            "validation labels are written otherwise",
            ["mood_dev.tsv", "'0' in 1 row where it has '0.0'", "write these labels alike"],
            both(
                mood("validation: mood_dev.tsv"),
                rows("mood_train.tsv", "{n}\tx{n}\t{n}.0", 3),
                write("mood_dev.tsv", "d0\tsun\t0\nd1\tno\t1\n"),
            ),
        ),
        Case(
            "every validation row is a training row",
            ["mood_train.tsv must have rows that are not trained on", "all 30 rows", "leave `validation:` out"],
            mood("validation: mood_train.tsv"),
        ),
        Case(
            "a task has one class", ["two classes or more", "only 'a'"], write("mood_train.tsv", "0\tx\ta\n1\ty\ta\n")
        ),
        Case(
            "the split takes a class's last row",
            ["keep a training row of each class", "lower split.validation"],
            both(
                yaml("search:\n", "split: {validation: 0.9}\nsearch:\n"),
                write("mood_train.tsv", "".join(f"{n}\tx{n}\t{'ab'[n < 2]}\n" for n in range(40))),
            ),
        ),
        Case(
            "no class has two rows to split",
            ["a class with two rows or more of different texts", "name a validation file"],
            write("mood_train.tsv", "0\tx\ta\n1\ty\tb\n"),
        ),
        Case(
            "a label is no number where the metric asks for numbers",
            ["mood_train.tsv, line 2", "have a number as its label", "'glad'", "name a metric of classes"],
            both(yaml("macro_f1", "pearson"), write("mood_train.tsv", "0\tx\t4.5\n1\ty\tglad\n2\tz\t-1\n")),
        ),
        Case(
            "labels that are numbers are all the same",
            ["mood_train.tsv", "have labels that differ", "2.5 in every row"],
            both(yaml("macro_f1", "pearson"), rows("mood_train.tsv", "{n}\ttext {n}\t2.5")),
        ),
        Case(
            "too few rows of numbers to split",
            ["have three rows or more of different texts to split", "got 2"],
            both(yaml("macro_f1", "pearson"), write("mood_train.tsv", "0\tx\t4.5\n1\ty\t3\n")),
        ),
        Case(
            "a class has one row, and the study has folds",
            [
                "training rows of each class outside each fold",
                "all rows of 'b' in one fold",
                "split.validation instead of",
            ],
            both(
                yaml("search:\n", "split: {folds: 3}\nsearch:\n"),
                write("mood_train.tsv", "0\tx\ta\n1\ty\tb\n2\tz\ta\n"),
            ),
        ),
        Case(
            "there are more folds than rows",
            ["at least 31 training rows of different texts for 31 folds", "got 30", "lower split.folds"],
            yaml("search:\n", "split: {folds: 31}\nsearch:\n"),
        ),
        Case(
            "a table lacks the column of groups",
            ["topic.csv must have the column 'prompt_id' (split.group)", "did you mean 'promt_id'"],
            both(task(GROUPED), split("group: prompt_id"), topic("promt_id", "p{n}")),
        ),
        Case(
            "a table lacks the column of folds",
            ["topic.csv must have the column 'part' (split.fold_column)", "name a column that it has"],
            both(task(GROUPED), split("fold_column: part"), topic("prompt_id", "p{n}")),
        ),
        Case(
            "a layout without names of columns has no column of groups",
            ["split.group must name text or text_b, or a column of a table or data set", "layout competition of mood"],
            split("group: prompt_id"),
        ),
        Case(
            "a layout without names of columns has no column of folds",
            ["split.fold_column must name a column of tables or data sets", "layout competition of mood"],
            split("fold_column: part"),
        ),
        Case(
            "groups by a second text that no row has",
            ["split.group must name text_b only for tasks of pairs", "the single texts of task mood"],
            split("group: text_b"),
        ),
        Case(
            "groups of a task that the study does not have",
            ["split.group.moods must name a task of the study", "did you mean 'mood'"],
            split("group: {moods: text}"),
        ),
        Case(
            "a fold column has one fold",
            ["the column 'part' (split.fold_column) must have two values or more", "only '0'"],
            both(task(GROUPED), split("fold_column: part"), topic("part", "0")),
        ),
        Case(
            "a row of the fold column is empty",
            ["topic.csv, line 2 must have a fold that is not empty"],
            both(
                task(GROUPED), split("fold_column: part"), topic("part", "{n}"), line("topic.csv", 2, "sentence 0,a,")
            ),
        ),
        Case(
            "a fold column has other folds than asked for",
            ["split.folds must be 12, the number of folds in the column 'part'", "got 5"],
            both(task(GROUPED), split("fold_column: part, folds: 5"), topic("part", "{n}")),
        ),
        Case(
            "a row's weight is no number",
            ["topic.csv, the column of `row_weight` must have numbers of at least 0", "'high' in the row with the id"],
            both(task(GROUPED.replace("topic.csv,", "topic.csv, row_weight: sure,")), topic("sure", "high")),
        ),
        Case(
            "a group is in the training and in the validation file",
            ["task topic must have each group (split.group) in the training file or in the validation file", "'p1'"],
            both(
                task(GROUPED.replace("topic.csv,", "topic.csv, validation: dev.csv,")),
                split("group: prompt_id"),
                topic("prompt_id", "p{n}"),
                write("dev.csv", "sentence,label,prompt_id\nnew,a,p1\n"),
            ),
        ),
        Case(
            "there are more folds than groups",
            ["task topic must have at least 5 groups (split.group)", "got 1; lower split.folds"],
            both(task(GROUPED), split("group: prompt_id, folds: 5"), topic("prompt_id", "p")),
        ),
        Case(
            "a file of pseudo-labels has no labels",
            ["more.tsv", "3 tab-separated columns", "2 in every line"],
            both(mood("extra_train: [{path: more.tsv}]"), rows("more.tsv", "{n}\ttext")),
        ),
        Case(
            "a file of soft labels is another file",
            ["mood_pool.tsv must be a Parquet file of soft labels", "take out `labels: soft`"],
            mood("extra_train: [{path: mood_pool.tsv, labels: soft}]"),
        ),
        Case(
            "soft labels in a task whose labels are numbers",
            ["tasks.mood.extra_train.0.labels must be hard", "a label like any other"],
            both(
                yaml("metric: macro_f1", "metric: pearson"),
                mood("extra_train: [{path: mood_pool.tsv, labels: soft}]"),
            ),
        ),
        Case(
            "a GLUE task's name says no kind",
            ["tasks.mood.glue", "CoLA, SST-2, MRPC"],
            yaml("layout: competition", "layout: glue"),
        ),
        Case(
            "a key of another layout",
            ["tasks.topic.pair must be used with the layout competition only", "true with the layout table"],
            both(task(TABLE.replace("columns:", "pair: true, columns:")), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a metric of classes for GLUE's STS-B",
            ["tasks.STS-B.metric must be a metric of values", "'macro_f1'", "pearson_spearman, as GLUE has it"],
            both(task("STS-B: {layout: glue, train: stsb.tsv}"), write("stsb.tsv", "")),
        ),
        Case("a GLUE train file is empty", ["cola.tsv must have at least one row"], both(COLA, write("cola.tsv", ""))),
        Case(
            "a GLUE test file lacks its header",
            ["cola_test.tsv, line 1", "header of GLUE's CoLA test file: index, sentence"],
            both(COLA, write("cola_test.tsv", "0\tBill slept.\n")),
        ),
        Case(
            "a table lacks a column",
            ["topic.csv must have the column 'sentence' (columns.text)", "did you mean 'sentences'"],
            both(
                task(TABLE),
                rows("topic.csv", "{n},text {n},{c}"),
                lambda folder: write("topic.csv", "id,sentences,label\n" + (folder / "topic.csv").read_text())(folder),
            ),
        ),
        Case(
            "ids of a table are numbers whose last digits were lost",
            ["topic.jsonl, line 1 must have all digits of its 'id'", "the rounded number 1e+18"],
            both(
                task("topic: {layout: table, train: topic.jsonl, columns: {id: id}}"),
                write("topic.jsonl", '{"id": 1e18, "text": "a", "label": "x"}\n{"id": 7, "text": "b", "label": "y"}\n'),
            ),
        ),
        Case(
            "a template names a column that the table lacks",
            ["topic.csv must have the column 'title' (template)", "did you mean 'titel'"],
            both(task(TEMPLATE), write("topic.csv", "id,titel,body,label\n0,a,b,x\n1,c,d,y\n")),
        ),
        Case(
            "a template without columns",
            ["tasks.topic.template must name at least one column in braces, such as {title}; got 'title'"],
            both(task(TEMPLATE.replace("{title} {body}", "title")), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a template with a brace of its own",
            ["tasks.topic.template must have columns in braces, and literal braces twice: {{ and }}; got expected '}'"],
            both(task(TEMPLATE.replace("{body}", "{body")), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a text from a template and from a column",
            ["tasks.topic.columns.text must be left out beside `template`", "name {sentence} in the template"],
            both(task(TABLE.replace("columns", 'template: "{title}", columns')), rows("topic.csv", "{n},text {n},{c}")),
        ),
        Case(
            "a CSV line has a comma too many",
            ["topic.csv, line 3", "3 columns like the header", "quote cells"],
            both(task(TABLE), write("topic.csv", "id,sentence,label\n0,a,x\n1,b, c,y\n")),
        ),
        Case(
            "a table has an unknown suffix",
            ["end in .csv, .tsv, .jsonl, .json, .parquet or .xlsx", "'.xls'", "save it as .xlsx"],
            both(task(TABLE.replace("csv", "xls")), write("topic.xls", b"\xd0\xcf\x11\xe0")),
        ),
        Case(
            "a workbook of Excel has a password",
            ["topic.xlsx must be a workbook of Excel", "save it as .xlsx without a password"],
            both(task(TABLE.replace("csv", "xlsx")), write("topic.xlsx", b"\xd0\xcf\x11\xe0")),
        ),
        Case(
            "a packed file ends too early",
            ["topic.csv.gz must be a gzip file that can be unpacked", "pack it again"],
            both(
                task(TABLE.replace("csv", "csv.gz")),
                write("topic.csv.gz", gzip.compress(b"id,sentence,label\n" * 99, mtime=0)[:-20]),
            ),
        ),
        Case(
            "a JSON file is one object",
            ["one object, with the keys 'rows'", "write the array of its rows alone"],
            both(
                task(TABLE.replace("csv", "json")), write("topic.json", '{\n  "rows": [\n    {"sentence": "a"}\n]}\n')
            ),
        ),
        Case(
            "rows have several labels",
            ["lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more must have one label", "not a single class"],
            both(
                task(TABLE.replace("csv", "jsonl")),
                write("topic.jsonl", '{"sentence": "a", "label": ["x", "y"]}\n' * 12),
            ),
        ),
        Case("a data set of the hub is not there", ["nobody/no-such-set", "`dataset`"], task(HUB)),
        Case(
            "the layout hub without a data set",
            ["tasks.topic.dataset", "set `dataset:`"],
            task("topic: {layout: hub, train: train}"),
        ),
    ),
}
