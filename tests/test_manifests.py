"""The files for Kubernetes and compose agree with the programs, and with each other."""

import re
import signal
import subprocess

import pytest
import yaml

from albert_tf.jobs import program
from tests.export.stand_in import QuietHandler, serving
from tests.jobs import PROJECT, free_port, run

JOBS = {
    path.name: yaml.safe_load(path.read_text())["spec"]
    for path in sorted((PROJECT / "pipelines/kubernetes").glob("*.yaml"))
}
MODULES = {"export_saved_model": "export"}
SERVING = PROJECT / "export/serving"
COMPOSE = yaml.safe_load((SERVING / "compose.yaml").read_text())["services"]
DEPLOYMENT, SERVICE, POLICY = yaml.safe_load_all((SERVING / "deployment.yaml").read_text())


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
    compose = COMPOSE["albert"]
    container, _ = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
    assert container["args"] == compose["command"]
    assert container["image"] == compose["image"].replace("${TAG:-", "").rstrip("}")
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in compose["healthcheck"]["test"][-1]
    assert "httpGet" not in container["livenessProbe"]


def test_the_health_check_resolves_the_label_stable():
    *_, script = COMPOSE["albert"]["healthcheck"]["test"]

    class Server(QuietHandler):
        def do_GET(self):  # noqa: N802
            known = "/v1/models/albert", "/v1/models/albert/labels/stable/metadata"
            self.reply(200 if self.path in known else 400, {})

    def check(port, label="stable"):
        own = script.replace("$$", "$").replace("8501", str(port)).replace("stable", label)
        return subprocess.run(["bash", "-c", own], capture_output=True, timeout=60).returncode

    with serving(Server) as port:
        assert check(port) == 0 and check(port, "nosuch") == 1
    assert check(free_port()) == 1


def test_clients_reach_the_server_through_the_proxy_alone():
    pod = DEPLOYMENT["spec"]["template"]["spec"]
    _, proxy = pod["containers"]
    assert proxy["image"] == COMPOSE["proxy"]["image"]
    assert proxy["args"] == COMPOSE["proxy"]["command"]
    assert pod["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": ["albert"]}]
    [port] = proxy["ports"]
    [rule] = POLICY["spec"]["ingress"]
    assert rule["ports"] == [{"port": port["containerPort"]}] and rule["from"]
    assert [ports["targetPort"] for ports in SERVICE["spec"]["ports"]] == [port["name"]]
    ports = [str(mapping).rpartition(":")[2] for mapping in COMPOSE["proxy"]["ports"]]
    assert ports == re.findall(r"\n    listen (\d+)", (SERVING / "nginx.conf").read_text())
    assert str(port["containerPort"]) in ports
    assert all(mapping.startswith("127.0.0.1:") for mapping in COMPOSE["albert"]["ports"])
