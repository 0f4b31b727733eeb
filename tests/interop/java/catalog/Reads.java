import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.MetadataTableType;
import org.apache.iceberg.MetadataTableUtils;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.transforms.Transforms;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/** What Iceberg Java sees of a table, one method per verb of the harness. */
final class Reads {
  private Reads() {}

  static Expression expression(Schema schema, JsonNode json) {
    return json == null || json.isNull() ? Expressions.alwaysTrue() : ExpressionParser.fromJson(json.toString(), schema);
  }

  static ArrayNode rows(Table table, JsonNode request) throws IOException {
    IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(table).where(expression(table.schema(), request.get("filter")));
    if (request.hasNonNull("snapshot")) {
      scan = scan.useSnapshot(request.get("snapshot").longValue());
    }
    ArrayNode out = Values.JSON.createArrayNode();
    try (CloseableIterable<Record> records = scan.build()) {
      for (Record record : records) {
        ObjectNode row = Values.row(record.struct(), record);
        // Where position deletes apply, the reader adds the row's position.
        row.remove(MetadataColumns.ROW_POSITION.name());
        out.add(row);
      }
    }
    return out;
  }

  static ObjectNode metadata(Table table) {
    var metadata = ((BaseTable) table).operations().current();
    ObjectNode out = Values.JSON.createObjectNode();
    out.put("location", table.location());
    out.put("metadata_location", metadata.metadataFileLocation());
    out.put("uuid", table.uuid().toString());
    out.put("format_version", metadata.formatVersion());
    out.put("last_sequence_number", metadata.lastSequenceNumber());
    out.put("current_snapshot_id", table.currentSnapshot() == null ? null : table.currentSnapshot().snapshotId());
    out.set("schema", parse(SchemaParser.toJson(table.schema())));
    out.set("properties", Values.JSON.valueToTree(table.properties()));
    ObjectNode refs = out.putObject("refs");
    for (var ref : table.refs().entrySet()) {
      SnapshotRef value = ref.getValue();
      refs.putObject(ref.getKey()).put("type", value.isTag() ? "tag" : "branch").put("snapshot_id", value.snapshotId());
    }
    ArrayNode history = out.putArray("history");
    table.history().forEach(h ->
        history.addObject().put("snapshot_id", h.snapshotId()).put("timestamp_ms", h.timestampMillis()));
    ArrayNode snapshots = out.putArray("snapshots");
    table.snapshots().forEach(s -> snapshots.add(snapshot(s)));
    return out;
  }

  private static ObjectNode snapshot(Snapshot snapshot) {
    ObjectNode out = Values.JSON.createObjectNode();
    out.put("snapshot_id", snapshot.snapshotId());
    out.put("parent_id", snapshot.parentId());
    out.put("sequence_number", snapshot.sequenceNumber());
    out.put("timestamp_ms", snapshot.timestampMillis());
    out.put("operation", snapshot.operation());
    out.set("summary", Values.JSON.valueToTree(snapshot.summary()));
    return out;
  }

  /** The live and deleted manifest entries of the current snapshot, after inheritance: Iceberg's own entries table. */
  static ArrayNode entries(Table table) throws IOException {
    Table entries = MetadataTableUtils.createMetadataTableInstance(table, MetadataTableType.ENTRIES);
    Types.StructType row = entries.schema().asStruct();
    Types.StructType file = entries.schema().findType("data_file").asStructType();
    int path = file.fields().indexOf(file.field("file_path"));
    ArrayNode out = Values.JSON.createArrayNode();
    try (CloseableIterable<FileScanTask> tasks = entries.newScan().planFiles()) {
      for (FileScanTask task : tasks) {
        try (CloseableIterable<StructLike> rows = task.asDataTask().rows()) {
          for (StructLike entry : rows) {
            ObjectNode one = out.addObject();
            for (String name : new String[] {"status", "snapshot_id", "sequence_number", "file_sequence_number"}) {
              Types.NestedField field = row.field(name);
              one.set(name, Values.toJson(field.type(), entry.get(row.fields().indexOf(field), Object.class)));
            }
            int dataFile = row.fields().indexOf(row.field("data_file"));
            one.put("path", entry.get(dataFile, StructLike.class).get(path, CharSequence.class).toString());
          }
        }
      }
    }
    return out;
  }

  static ArrayNode manifests(Table table) {
    ArrayNode out = Values.JSON.createArrayNode();
    if (table.currentSnapshot() != null) {
      table.currentSnapshot().allManifests(table.io()).forEach(m -> out.addObject()
          .put("path", m.path()).put("content", m.content().name()).put("spec_id", m.partitionSpecId())
          .put("sequence_number", m.sequenceNumber()).put("min_sequence_number", m.minSequenceNumber())
          .put("snapshot_id", m.snapshotId()).put("added_files", m.addedFilesCount())
          .put("existing_files", m.existingFilesCount()).put("deleted_files", m.deletedFilesCount()));
    }
    return out;
  }

  /**
   * What the live entries of a snapshot's manifests add up to, under the names that its summary uses, and each manifest's
   * smallest data sequence number as its list says it and as its live entries do.
   */
  static ObjectNode totals(Table table, JsonNode request) throws IOException {
    Snapshot snapshot = table.snapshot(request.get("snapshot").longValue());
    ObjectNode out = Values.JSON.createObjectNode();
    ArrayNode manifests = out.putArray("manifests");
    long[] files = new long[3];
    long[] rows = new long[3];
    long bytes = 0;
    for (ManifestFile manifest : snapshot.allManifests(table.io())) {
      long smallest = Long.MAX_VALUE;
      try (ManifestReader<?> reader = manifest.content() == ManifestContent.DATA
          ? ManifestFiles.read(manifest, table.io(), table.specs())
          : ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs())) {
        for (ContentFile<?> file : reader) {
          files[file.content().id()] += 1;
          rows[file.content().id()] += file.recordCount();
          bytes += file.fileSizeInBytes();
          smallest = Math.min(smallest, file.dataSequenceNumber());
        }
      }
      manifests.addObject().put("path", manifest.path()).put("said", manifest.minSequenceNumber())
          .put("live", smallest == Long.MAX_VALUE ? null : smallest);
    }
    out.putObject("totals").put("total-data-files", files[0]).put("total-records", rows[0])
        .put("total-delete-files", files[1] + files[2]).put("total-position-deletes", rows[1])
        .put("total-equality-deletes", rows[2]).put("total-files-size", bytes);
    return out;
  }

  static ArrayNode plan(Table table, JsonNode request) throws IOException {
    TableScan scan = table.newScan().filter(expression(table.schema(), request.get("filter"))).includeColumnStats();
    if (request.hasNonNull("tag")) {
      scan = scan.useRef(request.get("tag").asText());
    }
    try (CloseableIterable<FileScanTask> tasks = scan.planFiles()) {
      return tasks(tasks);
    }
  }

  static ArrayNode appendsBetween(Table table, JsonNode request) throws IOException {
    var scan = table.newIncrementalAppendScan().fromSnapshotExclusive(request.get("since").longValue());
    if (request.hasNonNull("until")) {
      scan = scan.toSnapshot(request.get("until").longValue());
    }
    try (CloseableIterable<FileScanTask> tasks = scan.planFiles()) {
      return tasks(tasks);
    }
  }

  private static ArrayNode tasks(CloseableIterable<FileScanTask> tasks) {
    ArrayNode out = Values.JSON.createArrayNode();
    for (FileScanTask task : tasks) {
      ObjectNode one = file(task.spec(), task.file());
      out.add(one);
      ArrayNode deletes = one.putArray("deletes");
      for (DeleteFile delete : task.deletes()) {
        deletes.addObject().put("path", delete.location()).put("content", delete.content().name())
            .put("sequence_number", delete.dataSequenceNumber());
      }
    }
    return out;
  }

  private static ObjectNode file(PartitionSpec spec, ContentFile<?> file) {
    ObjectNode out = Values.JSON.createObjectNode();
    out.put("path", file.location());
    out.put("records", file.recordCount());
    out.put("size", file.fileSizeInBytes());
    out.put("spec_id", file.specId());
    out.put("sequence_number", file.dataSequenceNumber());
    out.put("file_sequence_number", file.fileSequenceNumber());
    out.put("sort_order_id", file.sortOrderId());
    out.set("partition", Values.row(spec.partitionType(), file.partition()));
    return out;
  }

  /** A transform's results, in Iceberg's internal form, for values given in JSON's form. */
  static ArrayNode transform(JsonNode request) {
    Type type = SchemaParser.fromJson("{\"type\":\"struct\",\"fields\":[{\"id\":1,\"name\":\"x\",\"required\":false,\"type\":"
        + request.get("type") + "}]}").findType("x");
    Transform<Object, Object> transform = cast(Transforms.fromString(request.get("transform").asText()));
    var function = transform.bind(type);
    ArrayNode out = Values.JSON.createArrayNode();
    for (JsonNode value : request.get("values")) {
      Types.StructType one = Types.StructType.of(Types.NestedField.optional(1, "x", type));
      Object internal = new org.apache.iceberg.data.InternalRecordWrapper(one)
          .wrap(Values.record(one, Values.JSON.createObjectNode().set("x", value))).get(0, Object.class);
      out.add(Values.toJson(transform.getResultType(type), function.apply(internal)));
    }
    return out;
  }

  @SuppressWarnings("unchecked")
  private static <T> T cast(Object value) {
    return (T) value;
  }

  private static JsonNode parse(String json) {
    try {
      return Values.JSON.readTree(json);
    } catch (IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }
}
