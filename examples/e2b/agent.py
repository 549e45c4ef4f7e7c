"""An agent loop with E2B's own Python SDK, on your own machine.

    pip install e2b
    export E2B_API_URL=http://127.0.0.1:8080 E2B_SANDBOX_URL=http://127.0.0.1:8080 E2B_API_KEY=$(sudo cat /var/lib/isola/key)
    python3 agent.py "how many prime numbers are there below 1000?"

The model is a function from the conversation so far to the next step. The one here is scripted, so that the example runs
without an account anywhere; put a call to the model of your choice in its place.
"""
import os
import sys

from e2b import CommandExitException, Sandbox


def model(conversation):
    tries = sum(turn["role"] == "tool" for turn in conversation)
    if tries == 0:
        return {"run": "print(sum(all(n % d for d in range(2, n)) for n in range(2, 1000))"}  # a typing error
    if tries == 1:
        return {"run": "print(sum(all(n % d for d in range(2, n)) for n in range(2, 1000)))"}
    return {"answer": f"There are {conversation[-1]['text'].strip()}."}


def run(sandbox, code):
    """What the model wrote, run where it can do no harm. Errors are for the model to read, not for us to fail on."""
    sandbox.files.write("step.py", code)
    try:
        result = sandbox.commands.run("python3 step.py", timeout=30)
    except CommandExitException as error:
        result = error
    return result.stdout + result.stderr


def main():
    question = sys.argv[1] if len(sys.argv) > 1 else "how many prime numbers are there below 1000?"
    conversation = [{"role": "user", "text": question}]
    template = os.environ.get("E2B_TEMPLATE", "base")
    with Sandbox.create(template, timeout=120, allow_internet_access=False) as sandbox:
        for step in range(8):
            following = model(conversation)
            if "answer" in following:
                print(following["answer"])
                return
            text = run(sandbox, following["run"])
            print(f"step {step + 1}: {text.strip().splitlines()[-1]}", file=sys.stderr)
            conversation += [{"role": "assistant", "text": following["run"]}, {"role": "tool", "text": text}]


if __name__ == "__main__":
    main()
