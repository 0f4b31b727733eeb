import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ByteBuffers;
import org.apache.iceberg.util.DateTimeUtil;

/**
 * Values as JSON, exact and the same on both sides: dates in days and times in microseconds since their epoch, decimals and
 * uuids as text, bytes as hex, maps as pairs, structs as objects. {@code canonical.py} is the other half.
 */
final class Values {
  static final ObjectMapper JSON = new ObjectMapper();

  private Values() {}

  static ObjectNode row(Types.StructType struct, StructLike row) {
    ObjectNode out = JSON.createObjectNode();
    for (int i = 0; i < struct.fields().size(); i++) {
      Types.NestedField field = struct.fields().get(i);
      out.set(field.name(), toJson(field.type(), row.get(i, Object.class)));
    }
    return out;
  }

  static JsonNode toJson(Type type, Object value) {
    if (value == null) {
      return JSON.nullNode();
    }
    return switch (type.typeId()) {
      case STRUCT -> row(type.asStructType(), (StructLike) value);
      case LIST -> list(type.asListType().elementType(), (List<?>) value);
      case MAP -> pairs(type.asMapType(), (Map<?, ?>) value);
      default -> JSON.valueToTree(primitive(value));
    };
  }

  private static ArrayNode list(Type element, List<?> values) {
    ArrayNode out = JSON.createArrayNode();
    values.forEach(value -> out.add(toJson(element, value)));
    return out;
  }

  private static ArrayNode pairs(Types.MapType type, Map<?, ?> values) {
    ArrayNode out = JSON.createArrayNode();
    values.forEach((key, value) ->
        out.add(JSON.createArrayNode().add(toJson(type.keyType(), key)).add(toJson(type.valueType(), value))));
    return out;
  }

  private static Object primitive(Object value) {
    if (value instanceof Float number) {
      return number.doubleValue();
    } else if (value instanceof BigDecimal number) {
      return number.toPlainString();
    } else if (value instanceof UUID || value instanceof CharSequence) {
      return value.toString();
    } else if (value instanceof byte[] bytes) {
      return HexFormat.of().formatHex(bytes);
    } else if (value instanceof ByteBuffer buffer) {
      return HexFormat.of().formatHex(ByteBuffers.toByteArray(buffer.duplicate()));
    } else if (value instanceof LocalDate date) {
      return DateTimeUtil.daysFromDate(date);
    } else if (value instanceof LocalTime time) {
      return DateTimeUtil.microsFromTime(time);
    } else if (value instanceof LocalDateTime timestamp) {
      return DateTimeUtil.microsFromTimestamp(timestamp);
    } else if (value instanceof OffsetDateTime timestamp) {
      return DateTimeUtil.microsFromTimestamptz(timestamp);
    }
    return value;
  }

  static Record record(Types.StructType struct, JsonNode json) {
    Record record = GenericRecord.create(struct);
    for (Types.NestedField field : struct.fields()) {
      record.setField(field.name(), fromJson(field.type(), json.get(field.name())));
    }
    return record;
  }

  static Object fromJson(Type type, JsonNode json) {
    if (json == null || json.isNull()) {
      return null;
    }
    return switch (type.typeId()) {
      case BOOLEAN -> json.asBoolean();
      case INTEGER -> json.intValue();
      case LONG -> json.longValue();
      case FLOAT -> Float.valueOf(json.asText());
      case DOUBLE -> Double.valueOf(json.asText());
      case DECIMAL -> new BigDecimal(json.asText());
      case STRING -> json.asText();
      case UUID -> UUID.fromString(json.asText());
      case FIXED -> HexFormat.of().parseHex(json.asText());
      case BINARY -> ByteBuffer.wrap(HexFormat.of().parseHex(json.asText()));
      case DATE -> DateTimeUtil.dateFromDays(json.intValue());
      case TIME -> DateTimeUtil.timeFromMicros(json.longValue());
      case TIMESTAMP -> ((Types.TimestampType) type).shouldAdjustToUTC()
          ? DateTimeUtil.timestamptzFromMicros(json.longValue())
          : DateTimeUtil.timestampFromMicros(json.longValue());
      case STRUCT -> record(type.asStructType(), json);
      case LIST -> {
        List<Object> out = new ArrayList<>();
        json.forEach(element -> out.add(fromJson(type.asListType().elementType(), element)));
        yield out;
      }
      case MAP -> {
        Map<Object, Object> out = new LinkedHashMap<>();
        json.forEach(pair -> out.put(
            fromJson(type.asMapType().keyType(), pair.get(0)), fromJson(type.asMapType().valueType(), pair.get(1))));
        yield out;
      }
      default -> throw new IllegalArgumentException("No JSON form for " + type);
    };
  }
}
