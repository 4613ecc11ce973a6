//! The values in a configuration file. The error of each states what was expected and what was
//! found; the parser of the file adds line and key.

use std::fmt;
use std::time::Duration;

use collie_server::parse_bytes;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::args::Address;

/// The value of a setting that is a number of seconds.
pub(super) fn seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
}

/// The value of a setting that is a size.
pub(super) fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number<const MIN: i64, const MAX: i64>(pub(crate) i64);

impl<const MIN: i64, const MAX: i64> Number<MIN, MAX> {
    /// The value of a setting that is a count; negative numbers become 0.
    pub(crate) fn count(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }
}

impl<const MIN: i64, const MAX: i64> Serialize for Number<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(Between {
                min: MIN,
                max: MAX,
                has_units: false,
            })
            .map(Self)
    }
}

/// Bytes, from `MIN` to `MAX`: a number, or a text with one of Redis' units, as in `"64mb"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes<const MIN: i64, const MAX: i64>(pub(crate) i64);

impl<const MIN: i64, const MAX: i64> Bytes<MIN, MAX> {
    pub(crate) fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<const MIN: i64, const MAX: i64> Serialize for Bytes<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        for (unit, size) in [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)] {
            if self.0 >= size && self.0 % size == 0 {
                return serializer.collect_str(&format_args!("{}{unit}", self.0 / size));
            }
        }
        serializer.serialize_i64(self.0)
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Bytes<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(Between {
                min: MIN,
                max: MAX,
                has_units: true,
            })
            .map(Self)
    }
}

/// Parses a number with bounds.
struct Between {
    min: i64,
    max: i64,
    has_units: bool,
}

impl Visitor<'_> for Between {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, unit) = if self.has_units {
            ("bytes (a number, or a text as in \"64mb\")", " bytes")
        } else {
            ("a whole number", "")
        };
        if self.max == i64::MAX {
            write!(f, "{what}, at least {}{unit}", self.min)
        } else {
            write!(f, "{what}, from {} to {}{unit}", self.min, self.max)
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<i64, E> {
        if (self.min..=self.max).contains(&value) {
            Ok(value)
        } else {
            Err(E::invalid_value(Unexpected::Signed(value), &self))
        }
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<i64, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i64, E> {
        if !self.has_units {
            return Err(E::invalid_type(Unexpected::Str(text), &self));
        }
        match parse_bytes(text) {
            Some(value) if (self.min..=self.max).contains(&value) => Ok(value),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|expected| D::Error::custom(format_args!("invalid value: {text:?}, {expected}")))
    }
}

/// A password. No error and no print-out shows it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(masked)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) if (1..=collie_server::PASSWORD_LEN_MAX).contains(&text.len()) => {
                Ok(Self(text))
            }
            toml::Value::String(text) => Err(D::Error::custom(format_args!(
                "invalid length: {} bytes, expected a password of 1 to {} bytes",
                text.len(),
                collie_server::PASSWORD_LEN_MAX
            ))),
            other => Err(D::Error::custom(format_args!(
                "invalid type: {}, expected a password in quotes",
                other.type_str()
            ))),
        }
    }
}
