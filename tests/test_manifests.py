"""The files for Kubernetes and compose agree with the programs, and with each other."""

import re
import signal

import pytest
import yaml

from albert_tf.jobs import program
from tests.jobs import PROJECT, run

JOBS = {
    path.name: yaml.safe_load(path.read_text())["spec"]
    for path in sorted((PROJECT / "pipelines/kubernetes").glob("*.yaml"))
}
MODULES = {"export_saved_model": "export"}
SERVING = PROJECT / "export/serving"


@pytest.mark.parametrize("job", JOBS)
def test_a_job_fails_at_a_user_error_and_is_repeated_after_a_signal(job):
    rules = [rule for rule in JOBS[job]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    actions = {code: rule["action"] for rule in rules for code in rule["onExitCodes"]["values"]}
    with pytest.raises(SystemExit) as user_error:
        program.fail("a flag is wrong")
    signals = dict.fromkeys((128 + signal.SIGINT, 128 + signal.SIGTERM), "Ignore")
    assert actions == {user_error.value.code: "FailJob", **signals}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_flags_of_its_program(job, tmp_path):
    [container] = JOBS[job]["template"]["spec"]["containers"]
    name, *flags = container["args"]
    here = [re.sub(r"=(?=\w+/|records$)", f"={tmp_path}/none/", flag) for flag in flags]
    module = f"{MODULES.get(name, 'pipelines')}.{name}"
    assert f"{tmp_path}/none" in run(module, *here, exit_code=2)[1]
    if "livenessProbe" in container:
        model_dir = next(flag for flag in flags if "--model_dir=" in flag).partition("=")[2]
        assert f"{model_dir}/metrics.jsonl" in container["livenessProbe"]["exec"]["command"][-1]


def test_kubernetes_serves_as_compose_does():
    compose = yaml.safe_load((SERVING / "compose.yaml").read_text())["services"]["albert"]
    deployment, *_ = yaml.safe_load_all((SERVING / "deployment.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == compose["command"]
    assert container["image"] == compose["image"].replace("${TAG:-", "").rstrip("}")
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in compose["healthcheck"]["test"][-1]
    assert "httpGet" not in container["livenessProbe"]
