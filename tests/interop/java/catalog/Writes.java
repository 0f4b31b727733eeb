import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.OverwriteFiles;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.UpdatePartitionSpec;
import org.apache.iceberg.UpdateSchema;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.Term;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.mapping.NameMappingParser;
import org.apache.iceberg.parquet.ParquetUtil;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.StructLikeMap;

/** What Iceberg Java does to a table, one method per verb of the harness. */
final class Writes {
  private Writes() {}

  static Table create(Catalog catalog, TableIdentifier name, JsonNode request) {
    Schema schema = SchemaParser.fromJson(request.get("schema").toString());
    PartitionSpec spec = request.hasNonNull("spec")
        ? PartitionSpecParser.fromJson(schema, request.get("spec").toString())
        : PartitionSpec.unpartitioned();
    Map<String, String> properties = new LinkedHashMap<>();
    request.path("properties").properties().forEach(e -> properties.put(e.getKey(), e.getValue().asText()));
    return catalog.createTable(name, schema, spec, properties);
  }

  static void append(Table table, JsonNode request) throws IOException {
    AppendFiles append = request.path("fast").asBoolean() ? table.newFastAppend() : table.newAppend();
    dataFiles(table, request.get("rows")).forEach(append::appendFile);
    if (request.hasNonNull("branch")) {
      append.toBranch(request.get("branch").asText());
    }
    append.commit();
  }

  static List<DataFile> dataFiles(Table table, JsonNode rows) throws IOException {
    List<Record> records = new ArrayList<>();
    rows.forEach(row -> records.add(Values.record(table.schema().asStruct(), row)));
    return dataFilesOf(table, records);
  }

  /** One Parquet file per partition, with the rows in the order they came. */
  static List<DataFile> dataFilesOf(Table table, List<Record> records) throws IOException {
    InternalRecordWrapper internal = new InternalRecordWrapper(table.schema().asStruct());
    PartitionKey key = new PartitionKey(table.spec(), table.schema());
    StructLikeMap<List<Record>> groups = StructLikeMap.create(table.spec().partitionType());
    for (Record record : records) {
      key.partition(internal.wrap(record));
      groups.computeIfAbsent(key.copy(), ignored -> new ArrayList<>()).add(record);
    }
    GenericFileWriterFactory factory = new GenericFileWriterFactory.Builder(table)
        .dataSchema(table.schema()).dataFileFormat(FileFormat.PARQUET).build();
    List<DataFile> files = new ArrayList<>();
    for (Map.Entry<StructLike, List<Record>> group : groups.entrySet()) {
      StructLike partition = table.spec().isPartitioned() ? group.getKey() : null;
      DataWriter<Record> writer = factory.newDataWriter(newFile(table, table.spec(), partition), table.spec(), partition);
      try (writer) {
        group.getValue().forEach(writer::write);
      }
      files.add(writer.toDataFile());
    }
    return files;
  }

  /** Files that someone else wrote, with the metrics that Iceberg Java reads from their footers. */
  static void addFiles(Table table, JsonNode request) {
    AppendFiles append = table.newAppend();
    String mapping = table.properties().get(TableProperties.DEFAULT_NAME_MAPPING);
    for (JsonNode path : request.get("paths")) {
      InputFile input = table.io().newInputFile(path.asText());
      Metrics metrics = ParquetUtil.fileMetrics(
          input, MetricsConfig.forTable(table), mapping == null ? null : NameMappingParser.fromJson(mapping));
      append.appendFile(DataFiles.builder(table.spec()).withInputFile(input).withFormat(FileFormat.PARQUET)
          .withMetrics(metrics).build());
    }
    append.commit();
  }

  /** {@code positions}: data file path → positions; each delete file stands under its data file's spec and partition. */
  static void deletePositions(Table table, JsonNode request) throws IOException {
    RowDelta delta = table.newRowDelta();
    JsonNode positions = request.get("positions");
    try (CloseableIterable<FileScanTask> tasks = table.newScan().planFiles()) {
      for (FileScanTask task : tasks) {
        JsonNode ours = positions.get(task.file().location());
        if (ours != null) {
          List<Long> rows = new ArrayList<>();
          ours.forEach(position -> rows.add(position.longValue()));
          delta.addDeletes(positionDeletes(table, task, rows));
        }
      }
    }
    delta.commit();
  }

  static DeleteFile positionDeletes(Table table, FileScanTask task, List<Long> positions) throws IOException {
    StructLike partition = task.spec().isPartitioned() ? task.file().partition() : null;
    GenericFileWriterFactory factory =
        new GenericFileWriterFactory.Builder(table).deleteFileFormat(FileFormat.PARQUET).build();
    PositionDeleteWriter<Record> writer =
        factory.newPositionDeleteWriter(newFile(table, task.spec(), partition), task.spec(), partition);
    try (writer) {
      PositionDelete<Record> delete = PositionDelete.create();
      for (long position : positions) {
        writer.write(delete.set(task.file().location(), position));
      }
    }
    return writer.toDeleteFile();
  }

  /** Keys under the default spec; a partitioned table's rows give their partition, so they must hold its source columns. */
  static void deleteEqual(Table table, JsonNode request) throws IOException {
    List<String> columns = new ArrayList<>();
    request.get("columns").forEach(column -> columns.add(column.asText()));
    Schema schema = table.schema().select(columns);
    int[] ids = columns.stream().mapToInt(column -> table.schema().findField(column).fieldId()).toArray();
    GenericFileWriterFactory factory = new GenericFileWriterFactory.Builder(table)
        .deleteFileFormat(FileFormat.PARQUET).equalityFieldIds(ids).equalityDeleteRowSchema(schema).build();
    RowDelta delta = table.newRowDelta();
    for (JsonNode row : request.get("rows")) {
      StructLike partition = partitionOf(table, row);
      EqualityDeleteWriter<Record> writer =
          factory.newEqualityDeleteWriter(newFile(table, table.spec(), partition), table.spec(), partition);
      try (writer) {
        writer.write(Values.record(schema.asStruct(), row));
      }
      delta.addDeletes(writer.toDeleteFile());
    }
    delta.commit();
  }

  private static StructLike partitionOf(Table table, JsonNode row) {
    if (!table.spec().isPartitioned()) {
      return null;
    }
    PartitionKey key = new PartitionKey(table.spec(), table.schema());
    Types.StructType struct = table.schema().asStruct();
    key.partition(new InternalRecordWrapper(struct).wrap(Values.record(struct, row)));
    return key;
  }

  static void updateSchema(Table table, JsonNode request) {
    UpdateSchema update = table.updateSchema().allowIncompatibleChanges();
    for (JsonNode step : request.get("steps")) {
      String column = step.get(1).asText();
      switch (step.get(0).asText()) {
        case "add" -> update.addColumn(column, type(step.get(2)));
        case "rename" -> update.renameColumn(column, step.get(2).asText());
        case "drop" -> update.deleteColumn(column);
        case "widen" -> update.updateColumn(column, (Type.PrimitiveType) type(step.get(2)));
        case "optional" -> update.makeColumnOptional(column);
        default -> throw new IllegalArgumentException("No such schema change: " + step);
      }
    }
    update.commit();
  }

  static Type type(JsonNode json) {
    String field = "{\"type\":\"struct\",\"fields\":[{\"id\":1,\"name\":\"x\",\"required\":false,\"type\":" + json + "}]}";
    return SchemaParser.fromJson(field).findType("x");
  }

  static void updateSpec(Table table, JsonNode request) {
    UpdatePartitionSpec update = table.updateSpec();
    for (JsonNode step : request.get("steps")) {
      switch (step.get(0).asText()) {
        case "add" -> update.addField(term(step));
        case "remove" -> update.removeField(step.get(1).asText());
        default -> throw new IllegalArgumentException("No such partition change: " + step);
      }
    }
    update.commit();
  }

  private static Term term(JsonNode step) {
    String column = step.get(2).asText();
    return switch (step.get(1).asText()) {
      case "identity" -> Expressions.ref(column);
      case "day" -> Expressions.day(column);
      case "month" -> Expressions.month(column);
      case "bucket" -> Expressions.bucket(column, step.get(3).intValue());
      case "truncate" -> Expressions.truncate(column, step.get(3).intValue());
      default -> throw new IllegalArgumentException("No such transform: " + step);
    };
  }

  static void setProperties(Table table, JsonNode request) {
    var update = table.updateProperties();
    request.get("properties").properties().forEach(e -> update.set(e.getKey(), e.getValue().asText()));
    update.commit();
  }

  static void tag(Table table, JsonNode request) {
    table.manageSnapshots().createTag(request.get("tag").asText(), request.get("snapshot").longValue()).commit();
  }

  static void expire(Table table) {
    table.expireSnapshots().expireOlderThan(Long.MAX_VALUE).retainLast(1).commit();
  }

  /**
   * An overwrite or a row delta with Iceberg's own conflict checks, from a base snapshot: throws ValidationException when
   * rows that match the filter were added since.
   */
  static void commitUnlessConflict(Table table, JsonNode request) throws IOException {
    long base = request.get("base").longValue();
    var filter = Reads.expression(table.schema(), request.get("filter"));
    List<DataFile> files = dataFiles(table, request.get("rows"));
    if (request.get("kind").asText().equals("overwrite")) {
      OverwriteFiles overwrite = table.newOverwrite().validateFromSnapshot(base).conflictDetectionFilter(filter)
          .validateNoConflictingData().validateNoConflictingDeletes();
      files.forEach(overwrite::addFile);
      overwrite.commit();
    } else {
      RowDelta delta = table.newRowDelta().validateFromSnapshot(base).conflictDetectionFilter(filter)
          .validateNoConflictingDataFiles().validateNoConflictingDeleteFiles();
      files.forEach(delta::addRows);
      delta.commit();
    }
  }

  private static EncryptedOutputFile newFile(Table table, PartitionSpec spec, StructLike partition) {
    OutputFileFactory factory = OutputFileFactory.builderFor(table, 0, 0)
        .operationId("java-" + UUID.randomUUID()).format(FileFormat.PARQUET).build();
    return partition == null ? factory.newOutputFile() : factory.newOutputFile(spec, partition);
  }
}
