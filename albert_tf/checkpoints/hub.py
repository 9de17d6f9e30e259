"""Downloads published models from the Hugging Face Hub, TF-Hub or Kaggle to a local cache.

No other module imports huggingface_hub or tensorflow_hub. Their environment variables apply:
HF_HOME (cache directory), HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE; TFHUB_CACHE_DIR.
"""

import fnmatch
import importlib
import os
import re
import tarfile
import warnings
from types import ModuleType

from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown
from albert_tf.text import huggingface_files

_SCHEME = "hf://"
_URLS = ("https://", "http://")
_NAME = re.compile(r"hf://([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?:@([A-Za-z0-9_./-]+))?")
_IN_CACHE = re.compile(r"models--([^/]+)--([^/]+)/snapshots/([0-9a-f]{40})/?$")
# In order of preference. safetensors files are preferred, because they cannot execute code.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
_OTHERS = ("config.json", "spiece.model", "vocab.txt", *huggingface_files.FILES)


def is_name(path: str) -> bool:
    """Returns whether `path` is hf://OWNER/NAME, with or without @REVISION, or a URL."""
    return path.startswith((_SCHEME, *_URLS))


def is_pinned(name: str) -> bool:
    """Returns whether a name includes a commit or, if it is a URL, a version number."""
    return bool(re.search(r"/\d+$" if name.startswith(_URLS) else "@[0-9a-f]{40}$", name))


def cached_name(path: str) -> str | None:
    """Returns the URL or hf://OWNER/NAME@COMMIT of a cached model; None for other paths."""
    if found := _IN_CACHE.search(path):
        return f"{_SCHEME}{found[1]}/{found[2]}@{found[3]}"
    descriptor = path.rstrip("/") + ".descriptor.txt"  # tensorflow_hub's
    if os.path.isfile(descriptor):
        with open(descriptor, encoding="utf-8") as file:
            return file.readline().strip().removeprefix("Module: ")
    return None


def local_path(path: str) -> str:
    """Returns the local directory of a published model, which is downloaded if needed.

    The model is given as hf://OWNER/NAME[@REVISION] (a branch, tag or commit; default: the newest
    commit), or as a TF-Hub or Kaggle URL. Other paths are returned unchanged.
    """
    if not is_name(path):
        return path
    directory = _from_tf_hub(path) if path.startswith(_URLS) else _from_hugging_face(path)
    print(f"{path} is {directory}")
    return directory


def _from_tf_hub(url: str) -> str:
    """Downloads a SavedModel, if needed, without loading it; returns its directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tensorflow_hub uses pkg_resources
        import tensorflow_hub  # imported late, because it imports Keras

    try:
        return tensorflow_hub.resolve(url)
    except (OSError, tarfile.TarError) as error:  # HTTP, network or archive errors
        raise UserError(
            f"{url}: {type(error).__name__}: {error}; is there a network, and is it the URL of a "
            "model of tfhub.dev or kaggle.com with its version, such as "
            "https://tfhub.dev/google/albert_base/3 (hf://OWNER/NAME names a model of the Hugging "
            "Face Hub)? If the download broke off, run the same command again"
        ) from error


def _from_hugging_face(path: str) -> str:
    """Downloads the required files of a repository, if needed; returns their cache directory."""
    if not (found := _NAME.fullmatch(path)):
        raise UserError(f"{path!r}: expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    name, revision = found.groups()
    hub = _import_hub(path)
    try:
        if hub.constants.HF_HUB_OFFLINE:
            # Without these patterns, huggingface_hub 2 requires the files that were never wanted.
            wanted = [*_WEIGHTS[0], *_OTHERS]
            return hub.snapshot_download(
                name, revision=revision, allow_patterns=wanted, local_files_only=True
            )
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True)
        wanted = _wanted([file.rfilename for file in info.siblings], path)
        # Pass the revision as the user gave it: the cache records it for calls without network.
        directory = hub.snapshot_download(name, revision=revision, allow_patterns=wanted)
        if not_listed := {*wanted} - {*files.names_in(directory)}:
            raise ValueError(f"its list of files lacks {min(not_listed)}")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: {_cause(hub, error)}") from error
    for file in info.siblings:
        # The hub provides a SHA-256 only for LFS files, such as weights.
        if file.rfilename in wanted and file.lfs:
            _check_hash(os.path.join(directory, file.rfilename), file.lfs["sha256"], path)
    return directory


def _import_hub(path: str) -> ModuleType:
    try:
        for name in ("huggingface_hub.constants", "huggingface_hub.errors"):
            importlib.import_module(name)
        return importlib.import_module("huggingface_hub")
    except ImportError:
        message = f"{path} needs huggingface_hub: python -m pip install huggingface_hub"
        raise UserError(message) from None
    except ValueError as error:  # of its environment variables, such as HF_ENDPOINT
        message = f"{path}: {error}: check HF_ENDPOINT and the other variables of huggingface_hub"
        raise UserError(message) from error


def _cause(hub: ModuleType, error: Exception) -> str:
    """Returns the cause of an error of huggingface_hub and the remedy."""
    errors, endpoint = hub.errors, hub.constants.ENDPOINT
    for kind, cause in (
        (errors.HFValidationError, str(error)),
        (errors.GatedRepoError, "its owner grants access: request it, set HF_TOKEN"),
        (errors.RepositoryNotFoundError, "no such model, or a private one: set HF_TOKEN"),
        (errors.RevisionNotFoundError, "the model has no such branch, tag or commit"),
    ):
        if isinstance(error, kind):
            return cause
    if isinstance(error, errors.LocalEntryNotFoundError):
        if hub.constants.HF_HUB_OFFLINE:
            return "not in the cache, and HF_HUB_OFFLINE is set: download it once without"
        cause = error.__cause__ or error
        first_line = str(cause).partition("\n")[0]
        return f"a file could not be downloaded: {type(cause).__name__}: {first_line}"
    # Since huggingface_hub 1.0, HTTP and network errors are those of httpx instead of OSErrors;
    # HfHubHTTPError inherits from their base class. An error of JSON is an OSError in requests, but
    # also a ValueError.
    of_network = (OSError, *errors.HfHubHTTPError.__bases__)
    if isinstance(error, of_network) and not isinstance(error, ValueError):
        return (
            f"{type(error).__name__} at {endpoint}: the hub is out of reach, or the download broke "
            "off: run the same command again to resume"
        )
    # A page of HTML, JSON of another form, or a file name that huggingface_hub refuses.
    return (
        f"an answer of {endpoint} cannot be used: {error!r}: check that no proxy or log-in page "
        "answers for the hub (HF_ENDPOINT), else choose another model"
    )


def _wanted(names: list[str], path: str) -> list[str]:
    """Returns the names of the files to download."""
    for patterns in _WEIGHTS:
        weights = [n for n in names if any(fnmatch.fnmatch(n, pattern) for pattern in patterns)]
        is_whole = not {*patterns[:2]}.isdisjoint(weights)  # shards need their index
        if is_whole and "config.json" in names:
            return [*weights, *(name for name in _OTHERS if name in names)]
    raise UserError(
        f"{path}: expected config.json with model.safetensors or pytorch_model.bin, found "
        f"{shown(names)}"
    )


def _check_hash(path: str, expected: str, shown: str) -> None:
    if files.sha256(path) != expected:
        os.remove(os.path.realpath(path))  # `path` is a symbolic link to this file
        os.remove(path)
        raise UserError(
            f"{shown}: {os.path.basename(path)} is damaged, its SHA-256 is not the hub's; it was "
            "removed: run the same command again"
        )
