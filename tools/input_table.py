"""Print a table of mistakes and hostile inputs: each command's exit code and last line of output.

    python -m tools.input_table > table.md

Creates its models and files in a temporary folder. Takes a few minutes and needs no network.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.input_cases import rows
from tools.input_files import call, prepare


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        commands = rows()
        with ThreadPoolExecutor(2) as pool:
            resumes = [text for text in commands if text.startswith(("resume", "--resume"))]
            results = {text: call(folder, commands[text]) for text in resumes}  # in order
            others = [text for text in commands if text not in results]
            results |= zip(others, pool.map(lambda text: call(folder, commands[text]), others))
        print("| input | exit code | last line of output |\n| --- | ---: | --- |")
        for text, (code, line) in results.items():
            shown = line.replace(f"{folder}/", "").replace("|", "\\|").removeprefix("error: ")
            print(f"| {text} | {code} | {shown} |")
        ran = "RUN" if (folder / "CODE-WAS-RUN").exists() else "not run"
        left = sorted(path.name for path in folder.glob("new*") if not (path / "model.safetensors").is_file())
        print(f"\n{len(results)} rows; code in checkpoints was {ran}; incomplete outputs: {', '.join(left) or 'none'}")


if __name__ == "__main__":
    main()
