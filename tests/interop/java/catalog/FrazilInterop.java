import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.PendingUpdate;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.jdbc.JdbcCatalog;

/**
 * Iceberg Java for the interop tests, on its JdbcCatalog.
 *
 * <p>{@code serve}: one JSON request per line on stdin, one JSON answer per line on stdout. {@code append REQUEST}: a writer
 * for races; waits for a line on stdin, then prints one line per acknowledged batch.
 */
public final class FrazilInterop {
  private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
  private static final BufferedReader IN =
      new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
  /** Statements that wait for their commit; a statement's number is its place here. */
  private static final List<PendingUpdate<?>> PREPARED = new ArrayList<>();

  private FrazilInterop() {}

  public static void main(String[] args) throws Exception {
    if (args[0].equals("serve")) {
      serve();
    } else {
      race(Values.JSON.readTree(args[1]));
    }
    System.exit(0);
  }

  private static void serve() throws IOException {
    Map<String, JdbcCatalog> catalogs = new HashMap<>();
    for (String line = IN.readLine(); line != null; line = IN.readLine()) {
      ObjectNode answer = Values.JSON.createObjectNode();
      try {
        JsonNode request = Values.JSON.readTree(line);
        JdbcCatalog catalog = request.has("catalog")
            ? catalogs.computeIfAbsent(request.get("catalog").toString(), ignored -> open(request.get("catalog")))
            : null;
        answer.set("ok", answer(catalog, request));
      } catch (Exception e) {
        answer.put("error", e.getClass().getSimpleName()).put("message", String.valueOf(e.getMessage()));
        if (e instanceof NullPointerException || e instanceof ClassCastException) {
          e.printStackTrace();
        }
      }
      say(answer);
    }
  }

  private static void say(JsonNode line) {
    OUT.println(line);
    OUT.flush();
  }

  private static JdbcCatalog open(JsonNode options) {
    Map<String, String> properties = new HashMap<>();
    properties.put("jdbc.schema-version", "V1");
    properties.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO");
    options.get("properties").properties().forEach(e -> properties.put(e.getKey(), e.getValue().asText()));
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(options.get("name").asText(), properties);
    return catalog;
  }

  private static JsonNode answer(JdbcCatalog catalog, JsonNode request) throws IOException {
    String verb = request.get("verb").asText();
    if (verb.equals("commit")) {
      PREPARED.set(request.get("prepared").intValue(), null).commit();
      return Values.JSON.nullNode();
    }
    if (!request.has("table")) {
      return answerForCatalog(catalog, verb, request);
    }
    TableIdentifier name = TableIdentifier.parse(request.get("table").asText());
    if (verb.equals("create")) {
      return Reads.metadata(Writes.create(catalog, name, request));
    }
    Table table = catalog.loadTable(name);
    return switch (verb) {
      case "rows" -> Reads.rows(table, request);
      case "metadata" -> Reads.metadata(table);
      case "entries" -> Reads.entries(table);
      case "manifests" -> Reads.manifests(table);
      case "totals" -> Reads.totals(table, request);
      case "plan" -> Reads.plan(table, request);
      case "appends_between" -> Reads.appendsBetween(table, request);
      case "prepare" -> {
        PREPARED.add(Statements.prepare(table, request));
        yield Values.JSON.getNodeFactory().numberNode(PREPARED.size() - 1);
      }
      default -> {
        write(table, verb, request);
        yield Reads.metadata(table);
      }
    };
  }

  private static JsonNode answerForCatalog(JdbcCatalog catalog, String verb, JsonNode request) {
    ArrayNode out = Values.JSON.createArrayNode();
    switch (verb) {
      case "namespaces" -> catalog.listNamespaces().forEach(namespace -> out.add(namespace.toString()));
      case "tables" -> catalog.listTables(Namespace.of(request.get("namespace").asText().split("\\.")))
          .forEach(table -> out.add(table.toString()));
      case "create_namespace" -> catalog.createNamespace(Namespace.of(request.get("namespace").asText().split("\\.")));
      case "transform" -> out.addAll(Reads.transform(request));
      default -> throw new IllegalArgumentException("No such verb: " + verb);
    }
    return out;
  }

  private static void write(Table table, String verb, JsonNode request) throws IOException {
    switch (verb) {
      case "append" -> Writes.append(table, request);
      case "add_files" -> Writes.addFiles(table, request);
      case "delete_positions" -> Writes.deletePositions(table, request);
      case "delete_equal" -> Writes.deleteEqual(table, request);
      case "update_schema" -> Writes.updateSchema(table, request);
      case "update_spec" -> Writes.updateSpec(table, request);
      case "set_properties" -> Writes.setProperties(table, request);
      case "tag" -> Writes.tag(table, request);
      case "expire" -> Writes.expire(table);
      case "commit_unless_conflict" -> Writes.commitUnlessConflict(table, request);
      default -> throw new IllegalArgumentException("No such verb: " + verb);
    }
    table.refresh();
  }

  /**
   * {@code count} batches of one file each. A batch whose commit failed for certain is sent again with the same file, so an
   * acknowledged batch must be in the table exactly once; an unknown outcome is said and never sent again.
   */
  private static void race(JsonNode request) throws IOException {
    Table table = open(request.get("catalog")).loadTable(TableIdentifier.parse(request.get("table").asText()));
    say(Values.JSON.createObjectNode().set("ready", request.get("writer")));
    IN.readLine();
    for (int seq = 0; seq < request.get("count").intValue(); seq++) {
      ObjectNode row = Values.JSON.createObjectNode().put("writer", request.get("writer").intValue()).put("seq", seq);
      List<DataFile> files = Writes.dataFiles(table, Values.JSON.createArrayNode().add(row));
      say(commit(table, files, row));
    }
  }

  private static ObjectNode commit(Table table, List<DataFile> files, ObjectNode row) {
    for (int failures = 0; ; failures++) {
      try {
        AppendFiles append = table.newAppend();
        files.forEach(append::appendFile);
        append.commit();
        return row.deepCopy().put("outcome", "acknowledged").put("failures", failures);
      } catch (CommitFailedException e) {
        table.refresh();
      } catch (CommitStateUnknownException e) {
        return row.deepCopy().put("outcome", "unknown").put("failures", failures);
      }
    }
  }
}
