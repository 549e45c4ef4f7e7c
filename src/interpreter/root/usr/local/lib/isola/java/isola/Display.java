package isola;

import java.awt.image.RenderedImage;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Base64;
import java.util.function.BiConsumer;
import javax.imageio.ImageIO;

/** What a cell shows beside its value: {@code Display.html("<b>bold</b>")}. */
public final class Display {
  /** Takes a MIME type and its text; set by whoever runs the cells. */
  public static volatile BiConsumer<String, String> sink = (type, text) -> {};

  private Display() {}

  public static void html(Object text) {
    show("text/html", text);
  }

  public static void markdown(Object text) {
    show("text/markdown", text);
  }

  public static void latex(Object text) {
    show("text/latex", text);
  }

  public static void svg(Object text) {
    show("image/svg+xml", text);
  }

  /** The text of a value of JSON; what is none is refused by the reader. */
  public static void json(String text) {
    show("application/json", text);
  }

  public static void png(byte[] bytes) {
    show("image/png", Base64.getEncoder().encodeToString(bytes));
  }

  public static void png(RenderedImage image) throws IOException {
    var bytes = new ByteArrayOutputStream();
    ImageIO.write(image, "png", bytes);
    png(bytes.toByteArray());
  }

  public static void show(String type, Object text) {
    sink.accept(type, String.valueOf(text));
  }
}
