import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CyclicBarrier;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.types.Types;

/**
 * Writers of Iceberg Java on one table, for {@code benchmarks/contention.py}: {@code ContendIceberg FOLDER} reads the folder's
 * {@code request.json} and leaves {@code answer.json}, as {@code contend.py} does.
 *
 * <p>A writer is a thread with a catalog, and so with connections, of its own: a JVM for each would have to share two cores
 * with a hundred others and would measure their start. Retries are what Iceberg's defaults say.
 */
public final class ContendIceberg {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Schema SCHEMA = new Schema(
      Types.NestedField.optional(1, "id", Types.LongType.get()),
      Types.NestedField.optional(2, "x", Types.StringType.get()));
  /** Commits to another table, which nobody counts: the JVM has loaded and compiled what the seconds are for. */
  private static final int WARM_UPS = 20;
  private static final int PROBLEM = 300;

  private final JsonNode request;
  private final boolean writesRows;
  private final TableIdentifier name;

  private ContendIceberg(JsonNode request) {
    this.request = request;
    this.writesRows = request.get("form").asText().equals("rows");
    this.name = TableIdentifier.parse(request.get("table").asText());
  }

  public static void main(String[] args) throws Exception {
    Path folder = Path.of(args[0]);
    ContendIceberg run = new ContendIceberg(JSON.readTree(folder.resolve("request.json").toFile()));
    JSON.writeValue(folder.resolve("answer.json").toFile(), run.answer());
    System.exit(0);
  }

  private ObjectNode answer() throws Exception {
    JdbcCatalog catalog = open();
    catalog.createNamespace(Namespace.of(name.namespace().levels()));
    Table warm = create(catalog, TableIdentifier.of(name.namespace(), "warm"));
    for (int i = 0; i < WARM_UPS; i++) {
      commit(warm, i);
    }
    create(catalog, name);
    List<Writer> writers = new ArrayList<>();
    CyclicBarrier barrier = new CyclicBarrier(request.get("writers").intValue());
    for (int number = 0; number < barrier.getParties(); number++) {
      writers.add(new Writer(number, barrier));
    }
    writers.forEach(Thread::start);
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode outcomes = answer.putArray("outcomes");
    int crashed = 0;
    for (Writer writer : writers) {
      writer.join();
      outcomes.addAll(writer.outcomes);
      crashed += writer.finished ? 0 : 1;
    }
    answer.put("crashed", crashed);
    answer.set("found", JSON.valueToTree(found(catalog.loadTable(name))));
    return answer;
  }

  private JdbcCatalog open() {
    Map<String, String> properties = new HashMap<>();
    properties.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO");
    request.get("properties").properties().forEach(e -> properties.put(e.getKey(), e.getValue().asText()));
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(request.get("catalog").asText(), properties);
    return catalog;
  }

  private static Table create(JdbcCatalog catalog, TableIdentifier name) {
    return catalog.createTable(name, SCHEMA, PartitionSpec.unpartitioned(), Map.of("format-version", "2"));
  }

  private void commit(Table table, long commit) throws IOException {
    DataFile file = writesRows ? written(table, commit) : staged(table, commit);
    table.newFastAppend().appendFile(file).commit();
  }

  private static DataFile staged(Table table, long commit) {
    return DataFiles.builder(table.spec()).withPath(table.location() + "/data/" + commit + ".parquet")
        .withFileSizeInBytes(1000).withRecordCount(10).build();
  }

  private static DataFile written(Table table, long commit) throws IOException {
    GenericFileWriterFactory factory = new GenericFileWriterFactory.Builder(table)
        .dataSchema(table.schema()).dataFileFormat(FileFormat.PARQUET).build();
    OutputFileFactory files = OutputFileFactory.builderFor(table, 0, commit).format(FileFormat.PARQUET).build();
    DataWriter<Record> writer = factory.newDataWriter(files.newOutputFile(), table.spec(), null);
    GenericRecord row = GenericRecord.create(table.schema());
    row.setField("id", commit);
    row.setField("x", "a");
    try (writer) {
      for (int i = 0; i < 10; i++) {
        writer.write(row);
      }
    }
    return writer.toDataFile();
  }

  /** How often each commit's id is in the table: rows, or files that are named by it. */
  private Map<Long, Integer> found(Table table) throws IOException {
    Map<Long, Integer> found = new TreeMap<>();
    if (writesRows) {
      try (CloseableIterable<Record> rows = IcebergGenerics.read(table).select("id").build()) {
        rows.forEach(row -> found.merge((Long) row.getField("id"), 1, Integer::sum));
      }
    } else {
      try (CloseableIterable<FileScanTask> tasks = table.newScan().planFiles()) {
        for (FileScanTask task : tasks) {
          String file = Path.of(task.file().location()).getFileName().toString();
          found.merge(Long.valueOf(file.replace(".parquet", "")), 1, Integer::sum);
        }
      }
    }
    return found;
  }

  private final class Writer extends Thread {
    private final int number;
    private final CyclicBarrier barrier;
    private final ArrayNode outcomes = JSON.createArrayNode();
    private boolean finished;

    private Writer(int number, CyclicBarrier barrier) {
      this.number = number;
      this.barrier = barrier;
    }

    @Override
    public void run() {
      try {
        Table table;
        try {
          table = open().loadTable(name);
        } finally {
          barrier.await();
        }
        write(table);
        finished = true;
      } catch (Exception e) {
        e.printStackTrace();
      }
    }

    private void write(Table table) {
      double seconds = request.get("seconds").doubleValue();
      long commit = number * request.get("per_writer").longValue();
      long start = System.nanoTime();
      while (since(start) < seconds) {
        ArrayNode outcome = outcomes.addArray().add(commit).add(since(start));
        String problem = null;
        try {
          commit(table, commit);
        } catch (IOException | RuntimeException e) {
          problem = e.toString().substring(0, Math.min(PROBLEM, e.toString().length()));
        }
        outcome.add(since(start)).add(problem);
        commit++;
      }
    }

    private static double since(long start) {
      return (System.nanoTime() - start) / 1e9;
    }

    private void commit(Table table, long commit) throws IOException {
      ContendIceberg.this.commit(table, commit);
    }
  }
}
