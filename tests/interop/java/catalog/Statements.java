import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.OverwriteFiles;
import org.apache.iceberg.PendingUpdate;
import org.apache.iceberg.ReplacePartitions;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.UpdatePartitionSpec;
import org.apache.iceberg.UpdateProperties;
import org.apache.iceberg.data.GenericDeleteFilter;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.data.parquet.GenericParquetReaders;
import org.apache.iceberg.expressions.Evaluator;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;

/**
 * Statements as Spark 4.1 puts them to Iceberg's core API, with the validations that SparkWrite and SparkPositionDeltaWrite ask
 * for at Iceberg's default isolation level, serializable.
 *
 * <p>A statement is prepared on the table as it was loaded and committed later, so that a test can put others in between.
 */
final class Statements {
  private Statements() {}

  static PendingUpdate<?> prepare(Table table, JsonNode request) throws IOException {
    Expression filter = Reads.expression(table.schema(), request.get("filter"));
    String column = request.path("column").asText();
    boolean copyOnWrite = request.path("mode").asText().equals("copy-on-write");
    return switch (request.get("statement").asText()) {
      case "append" -> append(table, request);
      // DELETE of whole files: SparkTable.deleteWhere.
      case "delete_files" -> table.newDelete().deleteFromRowFilter(filter);
      case "delete" -> copyOnWrite
          ? rewriteRows(table, filter, matching(table, filter), List.of(), null)
          : deleteRows(table, filter, matching(table, filter));
      case "update" -> copyOnWrite
          ? rewriteRows(table, filter, matching(table, filter), List.of(), request.get("set"))
          : updateRows(table, filter, matching(table, filter), changed(table, filter, request.get("set")));
      case "merge" -> merge(table, request, copyOnWrite);
      case "overwrite" -> overwrite(table, filter, request.get("rows"));
      case "replace_partitions" -> replacePartitions(table, request.get("rows"));
      case "compact" -> compact(table);
      case "add_column" -> table.updateSchema().addColumn(column, Writes.type(request.get("to")));
      case "drop_column" -> table.updateSchema().deleteColumn(column);
      case "rename_column" -> table.updateSchema().renameColumn(column, request.get("to").asText());
      case "widen_column" ->
          table.updateSchema().updateColumn(column, Writes.type(request.get("to")).asPrimitiveType());
      case "set_partitioning" -> partitioning(table, request.get("columns"));
      case "set_properties" -> properties(table, request.get("properties"));
      case "create_tag" ->
          table.manageSnapshots().createTag(request.get("tag").asText(), request.get("snapshot").longValue());
      default -> throw new IllegalArgumentException("No such statement: " + request);
    };
  }

  /** A data file with its live rows, in two parts: those that a statement is about, and the others. */
  private record Touched(FileScanTask task, List<Long> positions, List<Record> matching, List<Record> others) {}

  private static AppendFiles append(Table table, JsonNode request) throws IOException {
    AppendFiles append = table.newAppend();
    Writes.dataFiles(table, request.get("rows")).forEach(append::appendFile);
    if (request.hasNonNull("branch")) {
      append.toBranch(request.get("branch").asText());
    }
    return append;
  }

  /** SparkWrite's CopyOnWriteOperation: UPDATE with a set, DELETE without, MERGE with rows to insert. */
  private static OverwriteFiles rewriteRows(
      Table table, Expression filter, List<Touched> files, List<Record> inserted, JsonNode set) throws IOException {
    List<Record> rows = new ArrayList<>(inserted);
    OverwriteFiles overwrite = table.newOverwrite().validateFromSnapshot(table.currentSnapshot().snapshotId())
        .conflictDetectionFilter(filter).validateNoConflictingData().validateNoConflictingDeletes();
    for (Touched file : files) {
      overwrite.deleteFile(file.task().file());
      rows.addAll(file.others());
      if (set != null) {
        file.matching().forEach(row -> rows.add(with(table, row, set)));
      }
    }
    Writes.dataFilesOf(table, rows).forEach(overwrite::addFile);
    return overwrite;
  }

  /** SparkPositionDeltaWrite for DELETE. */
  private static RowDelta deleteRows(Table table, Expression filter, List<Touched> files) throws IOException {
    RowDelta delta = table.newRowDelta().conflictDetectionFilter(filter)
        .validateFromSnapshot(table.currentSnapshot().snapshotId()).validateNoConflictingDataFiles();
    List<String> referenced = new ArrayList<>();
    for (Touched file : files) {
      referenced.add(file.task().file().location());
      delta.addDeletes(Writes.positionDeletes(table, file.task(), file.positions()));
    }
    return delta.validateDataFilesExist(referenced);
  }

  /** SparkPositionDeltaWrite for UPDATE and MERGE. */
  private static RowDelta updateRows(Table table, Expression filter, List<Touched> files, List<Record> rows)
      throws IOException {
    RowDelta delta = deleteRows(table, filter, files).validateDeletedFiles().validateNoConflictingDeleteFiles();
    Writes.dataFilesOf(table, rows).forEach(delta::addRows);
    return delta;
  }

  /** MERGE INTO … ON of one key column, with UPDATE * and INSERT *: no filter is pushed to the target's scan. */
  private static PendingUpdate<?> merge(Table table, JsonNode request, boolean copyOnWrite) throws IOException {
    String key = request.get("key").asText();
    Set<Object> keys = new HashSet<>();
    List<Record> source = new ArrayList<>();
    for (JsonNode row : request.get("rows")) {
      Record record = Values.record(table.schema().asStruct(), row);
      source.add(record);
      keys.add(record.getField(key));
    }
    List<Touched> files = touched(table, Expressions.alwaysTrue(), row -> keys.contains(row.getField(key)));
    return copyOnWrite
        ? rewriteRows(table, Expressions.alwaysTrue(), files, source, null)
        : updateRows(table, Expressions.alwaysTrue(), files, source);
  }

  /** SparkWrite's OverwriteByFilter, with the write option isolation-level=serializable. */
  private static OverwriteFiles overwrite(Table table, Expression filter, JsonNode rows) throws IOException {
    OverwriteFiles overwrite = table.newOverwrite().overwriteByRowFilter(filter)
        .validateFromSnapshot(table.currentSnapshot().snapshotId())
        .validateNoConflictingDeletes().validateNoConflictingData();
    Writes.dataFiles(table, rows).forEach(overwrite::addFile);
    return overwrite;
  }

  /** SparkWrite's DynamicOverwrite, with the write option isolation-level=serializable. */
  private static ReplacePartitions replacePartitions(Table table, JsonNode rows) throws IOException {
    ReplacePartitions replace = table.newReplacePartitions()
        .validateFromSnapshot(table.currentSnapshot().snapshotId())
        .validateNoConflictingDeletes().validateNoConflictingData();
    Writes.dataFiles(table, rows).forEach(replace::addFile);
    return replace;
  }

  /** RewriteDataFilesCommitManager: the output has the sequence number of the snapshot that was read. */
  private static RewriteFiles compact(Table table) throws IOException {
    RewriteFiles rewrite = table.newRewrite().validateFromSnapshot(table.currentSnapshot().snapshotId());
    List<Record> rows = new ArrayList<>();
    for (Touched file : touched(table, Expressions.alwaysTrue(), row -> true)) {
      rewrite.deleteFile(file.task().file());
      rows.addAll(file.matching());
    }
    for (DataFile file : Writes.dataFilesOf(table, rows)) {
      rewrite.addFile(file);
    }
    return rewrite.dataSequenceNumber(table.currentSnapshot().sequenceNumber());
  }

  private static UpdatePartitionSpec partitioning(Table table, JsonNode columns) {
    UpdatePartitionSpec update = table.updateSpec();
    columns.forEach(column -> update.addField(column.asText()));
    return update;
  }

  private static UpdateProperties properties(Table table, JsonNode properties) {
    UpdateProperties update = table.updateProperties();
    properties.properties().forEach(e -> update.set(e.getKey(), e.getValue().asText()));
    return update;
  }

  private static List<Touched> matching(Table table, Expression filter) throws IOException {
    Types.StructType struct = table.schema().asStruct();
    Evaluator evaluator = new Evaluator(struct, filter);
    InternalRecordWrapper internal = new InternalRecordWrapper(struct);
    return touched(table, filter, row -> evaluator.eval(internal.wrap(row)));
  }

  private static List<Record> changed(Table table, Expression filter, JsonNode set) throws IOException {
    List<Record> rows = new ArrayList<>();
    for (Touched file : matching(table, filter)) {
      file.matching().forEach(row -> rows.add(with(table, row, set)));
    }
    return rows;
  }

  private static Record with(Table table, Record row, JsonNode set) {
    Record changed = row.copy();
    set.properties().forEach(e ->
        changed.setField(e.getKey(), Values.fromJson(table.schema().findType(e.getKey()), e.getValue())));
    return changed;
  }

  /** The files that hold a row of the statement. */
  private static List<Touched> touched(Table table, Expression filter, Predicate<Record> mine) throws IOException {
    List<Touched> found = new ArrayList<>();
    try (CloseableIterable<FileScanTask> tasks = table.newScan().filter(filter).planFiles()) {
      for (FileScanTask task : tasks) {
        Touched file = new Touched(task, new ArrayList<>(), new ArrayList<>(), new ArrayList<>());
        readLiveRows(table, file, mine);
        if (!file.matching().isEmpty()) {
          found.add(file);
        }
      }
    }
    return found;
  }

  private static void readLiveRows(Table table, Touched file, Predicate<Record> mine) throws IOException {
    Schema wanted = TypeUtil.join(table.schema(), new Schema(MetadataColumns.ROW_POSITION));
    GenericDeleteFilter deletes = new GenericDeleteFilter(table.io(), file.task(), table.schema(), wanted);
    Schema required = deletes.requiredSchema();
    try (CloseableIterable<Record> all = Parquet.read(table.io().newInputFile(file.task().file().location()))
            .project(required).createReaderFunc(parquet -> GenericParquetReaders.buildReader(required, parquet)).build();
        CloseableIterable<Record> live = deletes.filter(all)) {
      for (Record record : live) {
        Record row = GenericRecord.create(table.schema());
        table.schema().columns().forEach(column -> row.setField(column.name(), record.getField(column.name())));
        if (mine.test(row)) {
          file.matching().add(row);
          file.positions().add((Long) record.getField(MetadataColumns.ROW_POSITION.name()));
        } else {
          file.others().add(row);
        }
      }
    }
  }
}
