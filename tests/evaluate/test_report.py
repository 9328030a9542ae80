import io

from rich.console import Console

from runner.cli.evaluate import printed


def test_of_many_rows_the_first_are_printed() -> None:
    columns = ("class", "precision", "recall", "examples")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*printed({"classes": (columns, [(f"kind{index}", 1.0, None, 10) for index in range(50)])}))
    said = " ".join(console.export_text().split())
    assert "kind39 │ 1.0000 │ - │ 10" in said
    assert "kind40" not in said
    assert "the first 40 of 50; all: evaluate.json" in said
