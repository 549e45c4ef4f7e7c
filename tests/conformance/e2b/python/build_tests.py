"""Templates that users build: the builder's steps, files, what runs at the start, failures."""
import itertools
import json
import os
import tempfile
import zipfile

import e2b
from flavour import ASYNC, TEMPLATE, Sandbox, _settle
from harness import Skip, eventually, raises, test

NUMBERS = itertools.count()
Template = getattr(e2b, "AsyncTemplate" if ASYNC else "Template", None)


def fresh():
    if Template is None:
        raise Skip("this line has no templates")
    return f"built-py-{os.getpid()}-{next(NUMBERS)}"


def build(steps, name, **options):
    return _settle(Template.build(steps, alias=name, **options))


def run(name, line):
    sandbox = Sandbox.create(name, timeout=60)
    try:
        return sandbox.commands.run(line).stdout
    finally:
        sandbox.kill()


@test(["Template." + name for name in ("build", "from_template", "set_envs", "set_workdir", "run_cmd")], "runs the steps, and sandboxes have what they made")
def _():
    name = fresh()
    said = []
    steps = (Template().from_template(TEMPLATE).set_envs({"COLOUR": "blue"}).set_workdir("/home/user/work")
             .run_cmd("echo $COLOUR > made"))
    build(steps, name, on_build_logs=lambda entry: said.append(str(entry)))
    assert any("made" in line for line in said), said
    assert run(name, "cat made; pwd; echo $COLOUR") == "blue\n/home/user/work\nblue\n"


@test(["Template.build", "Template.copy"], "copies files")
def _():
    name = fresh()
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(folder + "/app/deep")
        for place, text in (("app/a.txt", "one"), ("app/deep/b.txt", "two")):
            with open(os.path.join(folder, place), "w") as file:
                file.write(text)
        build(Template(file_context_path=folder).from_template(TEMPLATE).copy("app", "/home/user/app"), name)
    assert run(name, "cat app/a.txt app/deep/b.txt") == "onetwo"


@test(["Template.build", "Template.set_start_cmd"], "keeps what the start command runs")
def _():
    name = fresh()
    build(Template().from_template(TEMPLATE).set_start_cmd("echo started > /home/user/mark; exec sleep 54321",
                                                           "test -e /home/user/mark"), name)
    assert run(name, "cat mark; pgrep -c -x sleep") == "started\n1\n"


@test(["Template.build", "BuildException"], "a step that fails raises BuildException")
def _():
    name = fresh()
    with raises(e2b.BuildException, "exit status 3"):
        build(Template().from_template(TEMPLATE).run_cmd("exit 3"), name)


@test(["Template.set_user", "Template.build"], "the last one is who commands and files of a sandbox belong to")
def _():
    name = fresh()
    build(Template().from_template(TEMPLATE).run_cmd("true").set_user("root"), name)
    sandbox = Sandbox.create(name, timeout=60)
    try:
        assert sandbox.commands.run("whoami; pwd").stdout == "root\n/root\n"
        sandbox.files.write("mine", "x")
        assert sandbox.commands.run("stat -c '%U %n' /root/mine").stdout == "root /root/mine\n"
        assert sandbox.commands.run("whoami; pwd", user="user").stdout == "user\n/home/user\n"
    finally:
        sandbox.kill()


@test(["Template.copy", "Template.set_workdir"], "relative paths begin at home")
def _():
    name = fresh()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/one", "w") as file:
            file.write("one")
        build(Template(file_context_path=folder).from_template(TEMPLATE).copy("one", "here/one").run_cmd("pwd > ran")
              .set_workdir("deep").copy("one", "two").run_cmd("pwd > ran"), name)
    assert run(name, "cd; cat here/one deep/two; echo; cat ran deep/ran; stat -c %U here/one deep deep/two") == \
        "oneone\n/home/user\n/home/user/deep\nuser\nuser\nuser\n"


OF_THE_OPERATOR = ("an image is what the operator has for it: fetched from registries that are allowed (`registries`), "
                   "or a template that stands for it (`e2b.images`)")


@test("Template.from_image", "is what the operator says it is", partly=OF_THE_OPERATOR)
def _():
    name = fresh()
    build(Template().from_image("debian:mapped").run_cmd("echo image > /home/user/who"), name)
    assert run(name, "cat /home/user/who") == "image\n"


IMAGES = ("debian", "ubuntu", "fedora", "alpine", "arch", "python", "node", "bun")


@test([f"Template.from_{name}_image" for name in IMAGES], "is what the operator says it is",
      partly=OF_THE_OPERATOR)
def _():
    fresh()
    for image in IMAGES:
        begun = Template()
        if hasattr(begun, f"from_{image}_image"):
            name = fresh()
            build(getattr(begun, f"from_{image}_image")("mapped").run_cmd(f"echo {image} > /home/user/who"), name)
            assert run(name, "cat /home/user/who") == image + "\n"


@test("Template.build", "an image that cannot be fetched raises")
def _():
    name = fresh()
    with raises(e2b.BuildException, "ubuntu"):
        build(Template().from_image("ubuntu:20.04"), name)


@test(["Template.exists", "Template.alias_exists"], "know what is there")
def _():
    for name in ("exists", "alias_exists"):
        if not hasattr(Template, name):
            raise Skip("this line has no such call")
        assert _settle(getattr(Template, name)(TEMPLATE)) is True
        assert _settle(getattr(Template, name)("no-such-template")) is False


@test(["Template.build_in_background", "Template.get_build_status"], "gives ids at once, and the status follows")
def _():
    name = fresh()
    if not hasattr(Template, "build_in_background"):
        raise Skip("this line has no background builds")
    info = _settle(Template.build_in_background(Template().from_template(TEMPLATE).run_cmd("sleep 1"), alias=name))
    assert info.template_id and info.build_id
    eventually(lambda: str(getattr(_settle(Template.get_build_status(info)).status, "value", "")) == "ready", "the build", 60)


@test(["Template.assign_tags", "Template.get_tags", "Template.remove_tags"], "a tag means a build, until it is gone")
def _():
    name = fresh()
    if not hasattr(Template, "assign_tags"):
        raise Skip("this line has no tags")
    build(Template().from_template(TEMPLATE).run_cmd("echo 1 > /home/user/n"), f"{name}:v1")
    _settle(Template.assign_tags(f"{name}:v1", ["stable"]))
    assert "stable" in [one.tag for one in _settle(Template.get_tags(name))]
    assert run(f"{name}:stable", "cat /home/user/n") == "1\n"
    _settle(Template.remove_tags(name, "stable"))
    with raises(e2b.SandboxException, "404"):
        Sandbox.create(f"{name}:stable")
    with raises(e2b.TemplateException, "404"):
        _settle(Template.remove_tags(name, "stable"))


@test(["Template." + name for name in ("copy_items", "make_dir", "make_symlink", "rename", "remove", "set_user", "skip_cache",
                                       "git_clone", "set_ready_cmd", "from_base_image", "from_dockerfile")],
      "steps of every kind")
def _():
    name = fresh()
    if TEMPLATE == "minimal":
        raise Skip("there is no template base")
    with tempfile.TemporaryDirectory() as folder:
        for place in ("one", "two"):
            with open(os.path.join(folder, place), "w") as file:
                file.write(place)
        steps = (Template(file_context_path=folder).from_base_image().skip_cache()
                 .copy_items([{"src": "one", "dest": "/home/user/in/one"}, {"src": "two", "dest": "/home/user/in/two"}])
                 .make_dir("/home/user/made/deep").make_symlink("/home/user/in/one", "/home/user/link")
                 .rename("/home/user/in/two", "/home/user/in/three", user="root").run_cmd("touch /home/user/gone").remove("/home/user/gone")
                 .run_cmd("git init -q /tmp/repo && cd /tmp/repo && git -c user.name=a -c user.email=a@b.example commit -q --allow-empty -m x")
                 .git_clone("/tmp/repo", "/home/user/clone")
                 .set_user("root").run_cmd("whoami > /opt/who").set_user("user").set_ready_cmd("test -e /opt/who"))
        build(steps, name)
    assert run(name, "cat link in/three /opt/who; ls -d clone in link made; test -d made/deep -a -d clone/.git") == "onetworoot\nclone\nin\nlink\nmade\n"
    other = fresh()
    build(Template().from_dockerfile("FROM e2bdev/base\nRUN echo docker > /home/user/who\n"), other)
    assert run(other, "cat /home/user/who") == "docker\n"


@test(["wait_for_file", "wait_for_port", "wait_for_process", "wait_for_timeout", "wait_for_url"], "what was started is there when a sandbox is")
def _():
    fresh()
    if TEMPLATE == "minimal":
        raise Skip("the template has no http.server")
    serve = "touch /home/user/up; exec python3 -m http.server 8123"
    for ready in (e2b.wait_for_file("/home/user/up"), e2b.wait_for_port(8123), e2b.wait_for_process("python3"), e2b.wait_for_timeout(500),
                  e2b.wait_for_url("http://127.0.0.1:8123/")):
        name = fresh()
        build(Template().from_template(TEMPLATE).set_start_cmd(serve, ready), name)
        run(name, "test -e /home/user/up && pgrep -f http.server")


@test("DockerfileSyntaxError", "a Dockerfile that is none")
def _():
    fresh()
    if not hasattr(e2b, "DockerfileSyntaxError"):
        raise Skip("this line has no such type")
    with raises(e2b.DockerfileSyntaxError):
        Template().from_dockerfile("FROM e2bdev/base\nBOGUS\n")


@test(["Template.to_json", "Template.to_dockerfile"], "need no server")
def _():
    fresh()
    if not hasattr(Template, "to_json"):
        raise Skip("this line has no such call")
    assert "FROM ubuntu:22.04" in Template.to_dockerfile(Template().from_image("ubuntu:22.04").run_cmd("true"))
    steps = Template().from_template(TEMPLATE).pip_install("six").npm_install("left-pad").apt_install("jq")
    assert [one["type"] for one in json.loads(Template.to_json(steps))["steps"]] == ["RUN", "RUN", "RUN"]


FROM_OUTSIDE = "steps like any other: what they install comes from outside, under the network that builds have"


def wheel(folder):
    """A package that was made here, since what is installed may not come from outside."""
    name = "island-1.0-py3-none-any.whl"
    about = "island-1.0.dist-info"
    parts = {"island.py": "print('from a wheel')\n", f"{about}/METADATA": "Metadata-Version: 2.1\nName: island\nVersion: 1.0\n",
             f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    parts[f"{about}/RECORD"] = "".join(f"{part},,\n" for part in (*parts, f"{about}/RECORD"))
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for part, text in parts.items():
            archive.writestr(part, text)
    return name


@test("Template.pip_install", "installs a wheel that was copied", partly=FROM_OUTSIDE)
def _():
    name = fresh()
    if TEMPLATE == "minimal":
        raise Skip("the template has no pip")
    with tempfile.TemporaryDirectory() as folder:
        made = wheel(folder)
        build(Template(file_context_path=folder).from_template(TEMPLATE).copy(made, f"/home/user/{made}").pip_install(f"/home/user/{made}"), name)
    assert run(name, "python3 -m island") == "from a wheel\n"


# In the place of each program one that writes down what it was asked for, and by whom.
STAND = """for one in npm bun apt-get; do printf '#!/bin/sh\\necho "%s $* $(whoami)" >> /opt/asked\\n' $one > /usr/local/bin/$one; chmod 755 /usr/local/bin/$one; done; touch /opt/asked; chmod 666 /opt/asked"""


@test(["Template." + name for name in ("npm_install", "bun_install", "apt_install")], "run the program of that name", partly=FROM_OUTSIDE)
def _():
    name = fresh()
    begun = Template().from_template(TEMPLATE).run_cmd(STAND, user="root").npm_install("left-pad", g=True)
    build(begun.bun_install("left-pad").apt_install("jq"), name)
    assert run(name, "cat /opt/asked").splitlines() == ["npm install -g left-pad root", "bun install left-pad user", "apt-get update root",
                                                        "apt-get install -y jq root"]


NO_DEVCONTAINER = "there is no template devcontainer: devcontainer.json is built by `isola template build --devcontainer`"


@test("Template.beta_dev_container_prebuild", "says that it is not there", absent=NO_DEVCONTAINER)
def _():
    name = fresh()
    with raises(e2b.BuildException, "devcontainer", exactly=True):
        build(Template().from_template("devcontainer").beta_dev_container_prebuild("/x"), name)


@test("Template.beta_set_dev_container_start", "says that it is not there", absent=NO_DEVCONTAINER)
def _():
    name = fresh()
    with raises(e2b.BuildException, "devcontainer", exactly=True):
        build(Template().from_template("devcontainer").beta_set_dev_container_start("/x"), name)


WITH_CREDENTIALS = {
    "from_gcp_registry": lambda: Template().from_gcp_registry("registry.example/x", service_account_json={"a": "b"}),
    "from_image with credentials": lambda: Template().from_image("registry.example/x", username="a", password="b"),
}


def refused(begin, why):
    def body():
        name = fresh()
        with raises(e2b.BuildException, why, exactly=True):
            build(begin(), name)
    return body


test("Template.from_aws_registry", "says that it is not there", absent="credentials are a user and a password, or a GCP service account's key")(
    refused(lambda: Template().from_aws_registry("registry.example/x", access_key_id="a", secret_access_key="b", region="c"), "aws"))


for method, begin in WITH_CREDENTIALS.items():
    test("Template." + method, "a registry that the operator does not name raises BuildException",
         partly="from registries that the operator names (`registries`)")(refused(begin, "registries"))
