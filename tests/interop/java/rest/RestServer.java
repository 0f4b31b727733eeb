import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Iceberg's reference REST catalog on a free loopback port. Prints its address on one line and serves until stdin ends.
 *
 * <p>Arguments: the SQLite file behind it, the warehouse. {@code POST /faults?lose=N} makes the next N commits land and then
 * answer 502, {@code POST /faults?refuse=N} makes the next N answer 503 without being applied.
 */
public class RestServer {
  public static void main(String[] args) throws Exception {
    JdbcCatalog backend = new JdbcCatalog();
    backend.setConf(new Configuration());
    backend.initialize("rest", Map.of(
        "uri", "jdbc:sqlite:" + args[0] + "?busy_timeout=60000",
        "warehouse", args[1],
        "jdbc.schema-version", "V1",
        "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO"));

    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new FaultyServlet(new RESTCatalogAdapter(backend))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(context);
    server.start();
    System.out.println("http://127.0.0.1:" + server.getURI().getPort());
    System.out.flush();
    while (System.in.read() >= 0) {
      // The parent holds the other end: when it dies, so does this server.
    }
    server.stop();
    System.exit(0);
  }

  @SuppressWarnings("serial")
  private static final class FaultyServlet extends RESTCatalogServlet {
    private final AtomicInteger lose = new AtomicInteger();
    private final AtomicInteger refuse = new AtomicInteger();

    FaultyServlet(RESTCatalogAdapter adapter) {
      super(adapter);
    }

    @Override
    protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
      if (request.getRequestURI().endsWith("/faults")) {
        set(lose, request.getParameter("lose"));
        set(refuse, request.getParameter("refuse"));
        response.setStatus(204);
      } else if (isCommit(request) && takeOne(refuse)) {
        answer(response, 503);
      } else if (isCommit(request) && takeOne(lose)) {
        super.doPost(request, new Swallowed(response));
        answer(response, 502);
      } else {
        super.doPost(request, response);
      }
    }

    private static void set(AtomicInteger counter, String text) {
      if (text != null) {
        counter.set(Integer.parseInt(text));
      }
    }

    private static boolean takeOne(AtomicInteger counter) {
      return counter.getAndUpdate(left -> Math.max(0, left - 1)) > 0;
    }

    private static boolean isCommit(HttpServletRequest request) {
      return request.getRequestURI().matches(".*/namespaces/[^/]+/tables/[^/]+|.*/transactions/commit");
    }

    private static void answer(HttpServletResponse response, int status) throws IOException {
      response.reset();
      response.setStatus(status);
      response.setContentType("application/json");
      response.getOutputStream().print(
          "{\"error\":{\"message\":\"injected fault\",\"type\":\"InjectedFault\",\"code\":" + status + "}}");
    }
  }

  /** Keeps what the servlet answers away from the client; the status of the real answer is lost on the way. */
  private static final class Swallowed extends jakarta.servlet.http.HttpServletResponseWrapper {
    Swallowed(HttpServletResponse response) {
      super(response);
    }

    @Override
    public java.io.PrintWriter getWriter() {
      return new java.io.PrintWriter(java.io.Writer.nullWriter());
    }

    @Override
    public jakarta.servlet.ServletOutputStream getOutputStream() {
      return new jakarta.servlet.ServletOutputStream() {
        @Override
        public boolean isReady() {
          return true;
        }

        @Override
        public void setWriteListener(jakarta.servlet.WriteListener listener) {}

        @Override
        public void write(int one) {}
      };
    }
  }
}
