import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import isola.Display;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.execution.LocalExecutionControlProvider;

/** Runs cells of Java for python/driver.py: each is a row of snippets of one JShell, in this very process. */
public class Cells {
  private final JShell shell;
  private final OutputStream events;

  private Cells(OutputStream events) {
    this.events = events;
    shell = JShell.builder().executionEngine(new LocalExecutionControlProvider(), Map.of()).build();
    shell.addToClasspath(System.getProperty("java.class.path"));
    for (String name : List.of("isola.Display", "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*",
                               "java.util.concurrent.*", "java.util.function.*", "java.util.stream.*"))
      shell.eval("import " + name + ";");
  }

  private static String encoded(String text) {
    String word = Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    return word.isEmpty() ? "-" : word;
  }

  private static String decoded(String word) {
    return word.equals("-") ? "" : new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
  }

  /** What a cell prints takes the way of its results, so that all of it comes in order. */
  private final class Stream extends OutputStream {
    private final String name;

    private Stream(String name) {
      this.name = name;
    }

    @Override
    public void write(int one) {
      write(new byte[] {(byte) one}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int from, int size) {
      byte[] piece = java.util.Arrays.copyOfRange(bytes, from, from + size);
      try {
        put(name + " " + Base64.getEncoder().encodeToString(piece));
      } catch (Exception gone) {
        System.exit(1);
      }
    }
  }

  private static String quoted(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
      else out.append(c);
    }
    return out.append('"').toString();
  }

  private synchronized void put(String line) throws Exception {
    events.write((line + "\n").getBytes(StandardCharsets.US_ASCII));
    events.flush();
  }

  private void event(String... words) throws Exception {
    System.out.flush();
    System.err.flush();
    put(String.join(" ", words));
  }

  private void display(String type, String text) {
    // JSON is a value, all else is text.
    String value = type.equals("application/json") ? text : quoted(text);
    try {
      event("display", encoded("{" + quoted(type) + ":" + value + "}"));
    } catch (Exception gone) {
      System.exit(1);
    }
  }

  private void error(String name, String value, String traceback) throws Exception {
    event("error", encoded(name), encoded(value), encoded(traceback));
  }

  private String rejected(SnippetEvent one, String source) {
    StringBuilder out = new StringBuilder();
    for (Diag diag : (Iterable<Diag>) shell.diagnostics(one.snippet())::iterator)
      if (diag.isError()) out.append(diag.getMessage(Locale.ROOT)).append('\n');
    return out.toString().strip();
  }

  private static String stack(JShellException thrown, String head) {
    StringBuilder out = new StringBuilder(head);
    for (StackTraceElement at : thrown.getStackTrace()) out.append("\n    at ").append(at);
    return out.toString();
  }

  private void run(String code) throws Exception {
    SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
    String last = null;
    for (String rest = code; !rest.isBlank();) {
      SourceCodeAnalysis.CompletionInfo part = analysis.analyzeCompletion(rest);
      if (part.completeness() == SourceCodeAnalysis.Completeness.DEFINITELY_INCOMPLETE) {
        error("SyntaxError", "the cell ends in the middle of a statement", rest);
        return;
      }
      String source = part.source() == null ? rest : part.source();
      rest = part.source() == null ? "" : part.remaining();
      last = null;
      for (SnippetEvent one : shell.eval(source)) {
        if (one.causeSnippet() != null) continue;
        if (one.status() == Snippet.Status.REJECTED) {
          String why = rejected(one, source);
          error("CompilationError", why.lines().findFirst().orElse("the code does not compile"), source.strip() + "\n" + why);
          return;
        }
        if (one.exception() instanceof EvalException thrown) {
          String name = thrown.getExceptionClassName(), message = String.valueOf(thrown.getMessage());
          boolean stopped = name.equals("java.lang.ThreadDeath");
          error(stopped ? "Interrupted" : name, stopped ? "the cell was interrupted" : message, stack(thrown, name + ": " + message));
          return;
        }
        if (one.exception() != null) {
          error("UnresolvedReference", String.valueOf(one.exception().getMessage()), "");
          return;
        }
        // An expression has a value to show; a declaration or an assignment has not.
        Snippet.SubKind kind = one.snippet().subKind();
        boolean shown = kind == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND || kind == Snippet.SubKind.VAR_VALUE_SUBKIND
            || kind == Snippet.SubKind.OTHER_EXPRESSION_SUBKIND;
        if (shown && one.value() != null && !one.value().isEmpty()) last = one.value();
      }
      if (stopping) {
        error("Interrupted", "the cell was interrupted", "");
        return;
      }
    }
    if (last != null) event("result", encoded("{\"text/plain\":" + quoted(last) + "}"));
  }

  private volatile boolean stopping;

  private static void set(String word) {
    int at = word.indexOf(':');
    System.setProperty(decoded(word.substring(0, at)), decoded(word.substring(at + 1)));
  }

  private void cell(String[] words) {
    Map<String, String> before = new HashMap<>();
    try {
      stopping = false;
      for (int i = 3; i < words.length; i++) {
        String name = decoded(words[i].substring(0, words[i].indexOf(':')));
        before.put(name, System.getProperty(name));
        set(words[i]);
      }
      run(decoded(words[2]));
      before.forEach((name, value) -> {
        if (value == null) System.clearProperty(name);
        else System.setProperty(name, value);
      });
      event("done", words[1]);
    } catch (Throwable thrown) {
      try {
        error(thrown.getClass().getName(), String.valueOf(thrown.getMessage()), "");
        event("done", words[1]);
      } catch (Exception gone) {
        System.exit(1);
      }
    }
  }

  public static void main(String[] args) throws Exception {
    Cells cells = new Cells(new FileOutputStream("/proc/self/fd/4"));
    System.setOut(new PrintStream(cells.new Stream("stdout"), true, StandardCharsets.UTF_8));
    System.setErr(new PrintStream(cells.new Stream("stderr"), true, StandardCharsets.UTF_8));
    Display.sink = cells::display;
    var requests = new BufferedReader(
        new InputStreamReader(new FileInputStream("/proc/self/fd/3"), StandardCharsets.US_ASCII));
    var work = new java.util.concurrent.LinkedBlockingQueue<String[]>();
    Thread runner = new Thread(() -> {
      while (true) {
        try {
          cells.cell(work.take());
        } catch (InterruptedException again) {
          continue;
        }
      }
    });
    runner.setDaemon(true);
    runner.start();
    for (String line; (line = requests.readLine()) != null;) {
      String[] words = line.split(" ");
      if (words[0].equals("interrupt")) {
        cells.stopping = true;
        cells.shell.stop();
      } else if (words[0].equals("set")) {
        for (int i = 1; i < words.length; i++) set(words[i]);
      } else if (words[0].equals("run")) {
        work.add(words);
      }
    }
    System.exit(0);
  }
}
