"""Pushes an exported folder to the hub."""

from __future__ import annotations

from pathlib import Path

from tutti.errors import Fault, StudyError, first_line
from tutti.workflows.console import console

_KNOWN = ("bundle.json", "config.json", "model.onnx")


def push(folder: Path | str, repo: str, *, private: bool = True, message: str = "Exported by Tutti") -> str:
    """Uploads a folder that ``export`` wrote to a repository of the Hugging Face hub, which is made if there is none.

    The token is that of ``hf auth login`` or of ``$HF_TOKEN``; ``$HF_ENDPOINT`` names another hub.

    Args:
        repo: ``NAME`` or ``OWNER/NAME``.
        private: whether a new repository is.

    Returns:
        The address of the commit.

    Raises:
        StudyError: if the folder is none that was exported, or the hub refuses.

    Example:
        >>> tutti.push("bundle", "me/mood")
    """
    from huggingface_hub import HfApi, errors

    place = Path(folder)
    if not any((place / name).is_file() for name in _KNOWN):
        rule, got = "be a folder that `tutti export` wrote", "one without " + " or ".join(_KNOWN)
        got = got if place.is_dir() else "no such folder"
        raise StudyError(Fault(str(place), rule, got, "name that folder"))
    hub = HfApi(library_name="tutti")
    try:
        made = hub.create_repo(repo, private=private, exist_ok=True)
        done = hub.upload_folder(repo_id=made.repo_id, folder_path=place, commit_message=message)
    except errors.HFValidationError as error:
        raise StudyError(
            Fault(f"the repository {repo}", "be NAME or OWNER/NAME", first_line(error), "correct it")
        ) from error
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # of whatever it speaks HTTP with
        rule, remedy = "take the folder", "log in with `hf auth login`, and check that you may write there"
        raise StudyError(Fault(f"the hub at {hub.endpoint}, {repo}", rule, first_line(error), remedy)) from error
    console.print(f"pushed to {done}")
    return str(done)
