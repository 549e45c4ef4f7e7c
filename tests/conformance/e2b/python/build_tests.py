"""Templates that users build: the builder's steps, files, what runs at the start, failures."""
import itertools
import os
import tempfile

import e2b
from flavour import ASYNC, TEMPLATE, Sandbox, _settle
from harness import Skip, raises, test

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


@test("Template.build", "runs the steps, and sandboxes have what they made")
def _():
    name = fresh()
    said = []
    steps = (Template().from_template(TEMPLATE).set_envs({"COLOUR": "blue"}).set_workdir("/home/user/work")
             .run_cmd("echo $COLOUR > made"))
    build(steps, name, on_build_logs=lambda entry: said.append(str(entry)))
    assert any("made" in line for line in said), said
    assert run(name, "cat made; pwd; echo $COLOUR") == "blue\n/home/user/work\nblue\n"


@test("Template.build", "copies files")
def _():
    name = fresh()
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(folder + "/app/deep")
        for place, text in (("app/a.txt", "one"), ("app/deep/b.txt", "two")):
            with open(os.path.join(folder, place), "w") as file:
                file.write(text)
        build(Template(file_context_path=folder).from_template(TEMPLATE).copy("app", "/home/user/app"), name)
    assert run(name, "cat app/a.txt app/deep/b.txt") == "onetwo"


@test("Template.build", "keeps what the start command runs")
def _():
    name = fresh()
    build(Template().from_template(TEMPLATE).set_start_cmd("echo started > /home/user/mark; exec sleep 54321",
                                                           "test -e /home/user/mark"), name)
    assert run(name, "cat mark; pgrep -c -x sleep") == "started\n1\n"


@test("Template.build", "a step that fails raises BuildException")
def _():
    name = fresh()
    kind = getattr(e2b, "BuildException", Exception)
    with raises(kind, "exit status 3"):
        build(Template().from_template(TEMPLATE).run_cmd("exit 3"), name)


@test("Template.build", "an image that cannot be fetched raises")
def _():
    name = fresh()
    with raises(Exception, "ubuntu"):
        build(Template().from_image("ubuntu:22.04"), name)
