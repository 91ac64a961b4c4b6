//! The fields of a column of an Arrow type.

use crate::coo::tns::decimal;
use crate::table::time::Moment;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, BinaryArray, BinaryViewArray, BooleanArray, Decimal32Array, Decimal64Array, Decimal128Array,
    Decimal256Array, FixedSizeBinaryArray, Float16Array, LargeBinaryArray, LargeStringArray, StringArray,
    StringViewArray,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, TimeUnit};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use std::io::Write;

/// Why a column of this type is no mode and no value, and what to do.
pub fn refusal(kind: &DataType) -> Option<String> {
    if kind.is_nested() && !matches!(kind, DataType::Dictionary(..)) {
        return Some(format!("is nested ({kind}); unnest it before, or name another column"));
    }
    match kind {
        DataType::Dictionary(_, values) => refusal(values),
        DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_) | DataType::Interval(_) => {
            Some(format!("is of the type {kind}; cast it to text or to a number, or name another column"))
        }
        _ => None,
    }
}

/// The fields of a column.
#[derive(Debug)]
pub struct Cells<'a> {
    nulls: Option<&'a NullBuffer>,
    values: Values<'a>,
}

#[derive(Debug)]
enum Values<'a> {
    Nothing,
    Bool(&'a BooleanArray),
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
    F16(&'a Float16Array),
    F32(&'a [f32]),
    F64(&'a [f64]),
    Text(&'a StringArray),
    LargeText(&'a LargeStringArray),
    TextView(&'a StringViewArray),
    Bytes(&'a BinaryArray),
    LargeBytes(&'a LargeBinaryArray),
    BytesView(&'a BinaryViewArray),
    FixedBytes(&'a FixedSizeBinaryArray),
    /// Days since 1970.
    Days(&'a [i32]),
    /// Fractions of a second since 1970, with this many per second: by a clock without a time zone, or in
    /// UTC.
    Stamps {
        values: &'a [i64],
        parts: i64,
        utc: bool,
    },
    Decimal32(&'a Decimal32Array),
    Decimal64(&'a Decimal64Array),
    Decimal128(&'a Decimal128Array),
    Decimal256(&'a Decimal256Array),
    Keys {
        keys: Vec<usize>,
        values: Box<Cells<'a>>,
    },
}

impl<'a> Cells<'a> {
    /// Of `column`; `None` for a type that [`refusal`] refuses.
    pub fn of(column: &'a dyn Array) -> Option<Self> {
        let nulls = column.nulls();
        let stamps = |values: &'a [i64], parts, utc| Values::Stamps { values, parts, utc };
        let values = match column.data_type() {
            DataType::Null => Values::Nothing,
            DataType::Boolean => Values::Bool(column.as_boolean()),
            DataType::Int8 => Values::I8(column.as_primitive::<Int8Type>().values()),
            DataType::Int16 => Values::I16(column.as_primitive::<Int16Type>().values()),
            DataType::Int32 => Values::I32(column.as_primitive::<Int32Type>().values()),
            DataType::Int64 => Values::I64(column.as_primitive::<Int64Type>().values()),
            DataType::UInt8 => Values::U8(column.as_primitive::<UInt8Type>().values()),
            DataType::UInt16 => Values::U16(column.as_primitive::<UInt16Type>().values()),
            DataType::UInt32 => Values::U32(column.as_primitive::<UInt32Type>().values()),
            DataType::UInt64 => Values::U64(column.as_primitive::<UInt64Type>().values()),
            DataType::Float16 => Values::F16(column.as_primitive::<Float16Type>()),
            DataType::Float32 => Values::F32(column.as_primitive::<Float32Type>().values()),
            DataType::Float64 => Values::F64(column.as_primitive::<Float64Type>().values()),
            DataType::Utf8 => Values::Text(column.as_string()),
            DataType::LargeUtf8 => Values::LargeText(column.as_string()),
            DataType::Utf8View => Values::TextView(column.as_string_view()),
            DataType::Binary => Values::Bytes(column.as_binary()),
            DataType::LargeBinary => Values::LargeBytes(column.as_binary()),
            DataType::BinaryView => Values::BytesView(column.as_binary_view()),
            DataType::FixedSizeBinary(_) => Values::FixedBytes(column.as_fixed_size_binary()),
            DataType::Date32 => Values::Days(column.as_primitive::<Date32Type>().values()),
            DataType::Date64 => stamps(column.as_primitive::<Date64Type>().values(), 1_000, false),
            DataType::Timestamp(unit, zone) => {
                let (values, parts): (&[i64], i64) = match unit {
                    TimeUnit::Second => (column.as_primitive::<TimestampSecondType>().values(), 1),
                    TimeUnit::Millisecond => {
                        (column.as_primitive::<TimestampMillisecondType>().values(), 1_000)
                    }
                    TimeUnit::Microsecond => {
                        (column.as_primitive::<TimestampMicrosecondType>().values(), 1_000_000)
                    }
                    TimeUnit::Nanosecond => {
                        (column.as_primitive::<TimestampNanosecondType>().values(), 1_000_000_000)
                    }
                };
                stamps(values, parts, zone.is_some())
            }
            DataType::Decimal32(..) => Values::Decimal32(column.as_primitive::<Decimal32Type>()),
            DataType::Decimal64(..) => Values::Decimal64(column.as_primitive::<Decimal64Type>()),
            DataType::Decimal128(..) => Values::Decimal128(column.as_primitive::<Decimal128Type>()),
            DataType::Decimal256(..) => Values::Decimal256(column.as_primitive::<Decimal256Type>()),
            DataType::Dictionary(..) => {
                let dictionary = column.as_any_dictionary_opt()?;
                let values = dictionary.values();
                // Without values every key is null.
                let keys = if values.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
                Values::Keys { keys, values: Box::new(Self::of(values.as_ref())?) }
            }
            _ => return None,
        };
        Some(Self { nulls, values })
    }

    /// Whether nothing stands there, or no number.
    pub fn is_null(&self, at: usize) -> bool {
        self.nulls.is_some_and(|nulls| nulls.is_null(at))
            || match &self.values {
                Values::Nothing => true,
                Values::F16(values) => values.value(at).is_nan(),
                Values::F32(values) => values[at].is_nan(),
                Values::F64(values) => values[at].is_nan(),
                Values::Keys { keys, values } => keys.get(at).is_none_or(|&key| values.is_null(key)),
                _ => false,
            }
    }

    /// Whether in each of `rows` rows something stands, which is or has a text.
    pub fn are_whole(&self, rows: usize) -> bool {
        let can_lack = matches!(
            self.values,
            Values::Nothing | Values::F16(_) | Values::F32(_) | Values::F64(_) | Values::Keys { .. }
        );
        let is_bytes = matches!(
            self.values,
            Values::Bytes(_)
                | Values::LargeBytes(_)
                | Values::BytesView(_)
                | Values::FixedBytes(_)
                | Values::Keys { .. }
        );
        self.nulls.is_none_or(|nulls| nulls.null_count() == 0)
            && (!can_lack || !(0..rows).any(|at| self.is_null(at)))
            && (!is_bytes || (0..rows).all(|at| self.is_text(at)))
    }

    /// Bytes without a type.
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        match &self.values {
            Values::Bytes(values) => Some(values.value(at)),
            Values::LargeBytes(values) => Some(values.value(at)),
            Values::BytesView(values) => Some(values.value(at)),
            Values::FixedBytes(values) => Some(values.value(at)),
            Values::Keys { keys, values } => values.bytes(*keys.get(at)?),
            _ => None,
        }
    }

    /// Whether what stands there is text, or has a text.
    pub fn is_text(&self, at: usize) -> bool {
        self.bytes(at).is_none_or(|bytes| std::str::from_utf8(bytes).is_ok())
    }

    /// Its text; `buffer` may hold it.
    pub fn text<'b>(&'b self, at: usize, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        buffer.clear();
        let mut digits = itoa::Buffer::new();
        match &self.values {
            Values::Nothing => {}
            Values::Text(values) => return values.value(at).as_bytes(),
            Values::LargeText(values) => return values.value(at).as_bytes(),
            Values::TextView(values) => return values.value(at).as_bytes(),
            Values::Bytes(_) | Values::LargeBytes(_) | Values::BytesView(_) | Values::FixedBytes(_) => {
                return self.bytes(at).unwrap_or_default();
            }
            Values::Keys { keys, values } => {
                return keys.get(at).map_or(&[], |&key| values.text(key, buffer));
            }
            Values::Bool(values) => {
                buffer.extend_from_slice(if values.value(at) { b"true" } else { b"false" });
            }
            Values::I8(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::I16(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::I32(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::I64(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::U8(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::U16(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::U32(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::U64(values) => buffer.extend_from_slice(digits.format(values[at]).as_bytes()),
            Values::F16(values) => decimal(values.value(at).to_f64(), buffer),
            // The shortest that reads back the same f32: 0.1, not 0.10000000149011612.
            Values::F32(values) if values[at].fract() != 0.0 => {
                buffer.extend_from_slice(ryu::Buffer::new().format(values[at]).as_bytes());
            }
            Values::F32(values) => decimal(values[at].into(), buffer),
            Values::F64(values) => decimal(values[at], buffer),
            Values::Days(values) => write_stamp(86_400 * i64::from(values[at]), 1, false, buffer),
            Values::Stamps { values, parts, utc } => write_stamp(values[at], *parts, *utc, buffer),
            Values::Decimal32(values) => buffer.extend_from_slice(values.value_as_string(at).as_bytes()),
            Values::Decimal64(values) => buffer.extend_from_slice(values.value_as_string(at).as_bytes()),
            Values::Decimal128(values) => buffer.extend_from_slice(values.value_as_string(at).as_bytes()),
            Values::Decimal256(values) => buffer.extend_from_slice(values.value_as_string(at).as_bytes()),
        }
        if matches!(self.values, Values::Days(_)) && buffer.ends_with(MIDNIGHT) {
            buffer.truncate(buffer.len() - MIDNIGHT.len());
        }
        buffer
    }

    /// What it is as a number, if its type is one.
    pub fn number(&self, at: usize) -> Option<f64> {
        Some(match &self.values {
            Values::I8(values) => values[at].into(),
            Values::I16(values) => values[at].into(),
            Values::I32(values) => values[at].into(),
            Values::I64(values) => values[at] as f64,
            Values::U8(values) => values[at].into(),
            Values::U16(values) => values[at].into(),
            Values::U32(values) => values[at].into(),
            Values::U64(values) => values[at] as f64,
            Values::F16(values) => values.value(at).to_f64(),
            Values::F32(values) => values[at].into(),
            Values::F64(values) => values[at],
            Values::Keys { keys, values } => values.number(*keys.get(at)?)?,
            _ => return None,
        })
    }

    /// What it is as a time on a clock in `zone`, if its type is one.
    pub fn moment(&self, at: usize, zone: &TimeZone) -> Option<Moment> {
        let (seconds, nanos, utc) = match &self.values {
            Values::Days(values) => (86_400 * i64::from(values[at]), 0, false),
            Values::Stamps { values, parts, utc } => {
                let part = values[at].rem_euclid(*parts) * (1_000_000_000 / parts);
                (values[at].div_euclid(*parts), u32::try_from(part).ok()?, *utc)
            }
            Values::Keys { keys, values } => return values.moment(*keys.get(at)?, zone),
            _ => return None,
        };
        let stamp = Timestamp::from_second(seconds).ok()?;
        let offset = if utc { i64::from(zone.to_offset(stamp).seconds()) } else { 0 };
        Some(Moment::Civil(seconds + offset, nanos))
    }
}

/// How a date's text ends that was written as a time.
const MIDNIGHT: &[u8] = b"T00:00:00";

/// A time, of which `parts` make a second; outside of the years -9999 to 9999 the number.
fn write_stamp(value: i64, parts: i64, utc: bool, out: &mut Vec<u8>) {
    let nanos = i32::try_from(value.rem_euclid(parts) * (1_000_000_000 / parts)).unwrap_or(0);
    let written = match Timestamp::new(value.div_euclid(parts), nanos) {
        Ok(stamp) if utc => write!(out, "{stamp}"),
        Ok(stamp) => write!(out, "{}", Offset::UTC.to_datetime(stamp)),
        Err(_) => write!(out, "{value}"),
    };
    debug_assert!(written.is_ok(), "a vector takes everything");
}
