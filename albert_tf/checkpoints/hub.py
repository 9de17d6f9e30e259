"""Downloads published models from the Hugging Face Hub, TF-Hub or Kaggle to a local cache.

No other module imports huggingface_hub or tensorflow_hub. Their environment variables apply:
HF_HOME (cache directory), HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE; TFHUB_CACHE_DIR.
"""

import os
import re
import warnings

from albert_tf.storage.errors import UserError
from albert_tf.text import huggingface_files

_SCHEME = "hf://"
_URLS = ("https://", "http://")
_NAME = re.compile(r"hf://([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?:@([A-Za-z0-9_./-]+))?")
_IN_CACHE = re.compile(r"models--([^/]+)--([^/]+)/snapshots/([0-9a-f]{40})/?$")
_WEIGHTS = "model.safetensors"  # of all files of weights, the one that cannot execute code
_OTHERS = ("config.json", "spiece.model", "vocab.txt", *huggingface_files.FILES)

_NAME_REMEDY = "check the network, the name, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE"
_URL_REMEDY = (
    "check the network and the URL: expected https://tfhub.dev/google/albert_base/3 and the like "
    "(hf://OWNER/NAME names a model of the Hugging Face Hub)"
)


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
    is_url = path.startswith(_URLS)
    try:
        directory = _from_tf_hub(path) if is_url else _from_hugging_face(path)
    except UserError:
        raise
    except Exception as error:  # of the network, an archive, or an answer that no hub gives
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        remedy = _URL_REMEDY if is_url else _NAME_REMEDY
        raise UserError(f"{path}: {reason}; {remedy}, and run the same command again") from error
    print(f"{path} is {directory}")
    return directory


def _from_tf_hub(url: str) -> str:
    """Downloads a SavedModel, if needed, without loading it; returns its directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tensorflow_hub uses pkg_resources
        import tensorflow_hub  # imported late, because it imports Keras

    return tensorflow_hub.resolve(url)


def _from_hugging_face(path: str) -> str:
    """Downloads the required files of a repository, if needed; returns their cache directory."""
    if not (found := _NAME.fullmatch(path)):
        raise UserError(f"{path!r}: expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    name, revision = found.groups()
    try:
        import huggingface_hub
    except ImportError:
        message = f"{path} needs huggingface_hub: python -m pip install huggingface_hub"
        raise UserError(message) from None
    # A hub out of reach is no error for a model in the cache, whole or not. The weights come last,
    # so where they are the other files are, too.
    others = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=[*_OTHERS])
    directory = huggingface_hub.snapshot_download(
        name, revision=os.path.basename(others), allow_patterns=[_WEIGHTS]
    )
    if not os.path.exists(os.path.join(directory, _WEIGHTS)):
        raise UserError(
            f"{path}: {_WEIGHTS} did not come: {_NAME_REMEDY}. If the model has its weights in "
            f"other files, load {name} once by its class of transformers and save it"
        )
    return directory
