"""Reads PREFIX.json, which contains the training settings of the vocabulary PREFIX.model."""

from __future__ import annotations

import os

from albert_tf.storage import files
from albert_tf.storage.errors import UserError


def settings_path(spm_model_file: str) -> str:
    """Returns the path of a vocabulary's settings file."""
    return f"{os.path.splitext(spm_model_file)[0]}.json"


def trained_lower_case(spm_model_file: str) -> bool | None:
    """Returns whether a vocabulary was trained on lower-cased text; None if that is unknown."""
    settings = files.read_json_if_exists(settings_path(spm_model_file)).get("settings")
    return settings.get("do_lower_case") if isinstance(settings, dict) else None


def resolve_lower_case(spm_model_file: str, do_lower_case: bool | None) -> bool:
    """Returns whether to lower-case text for a vocabulary.

    If `do_lower_case` is None, the setting of the vocabulary is used. Without a settings file the
    default is True, as in the published English vocabularies. If `do_lower_case` differs from the
    setting of the vocabulary, a UserError is raised.
    """
    made_for = trained_lower_case(spm_model_file)
    if made_for is None:
        return do_lower_case is not False
    if do_lower_case not in (None, made_for):
        raise UserError(
            f"--do_lower_case={str(do_lower_case).lower()}, but {spm_model_file!r} was trained "
            f"with --do_lower_case={str(made_for).lower()} (see "
            f"{settings_path(spm_model_file)}): omit the flag, or train another vocabulary"
        )
    return made_for
