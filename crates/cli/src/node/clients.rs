//! `[server]` in the configuration of a node: that of `collie serve`, without what a node has in its own section, and
//! what it does not choose.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::serve::Listening;

/// The settings that a node does not have, and why.
pub(super) const OTHERS: [(&str, &str); 5] = [
    (
        "listen",
        "`listen` of the section [node] says where a node listens",
    ),
    (
        "tls-port",
        "a node speaks TLS where it listens, if it has a certificate",
    ),
    (
        "tls-listen",
        "a node speaks TLS where it listens, if it has a certificate",
    ),
    (
        "tls-only",
        "a node speaks nothing but TLS, if it has a certificate",
    ),
    ("ack", "nodes acknowledge what a majority has on disk"),
];

pub(super) fn serialize<S: Serializer>(server: &Listening, serializer: S) -> Result<S::Ok, S::Error> {
    let mut table = toml::Table::try_from(server).map_err(S::Error::custom)?;
    for (name, _) in OTHERS {
        table.remove(name);
    }
    table.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Listening, D::Error> {
    deserializer.deserialize_map(Section)
}

struct Section;

impl<'de> Visitor<'de> for Section {
    type Value = Listening;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listening, A::Error> {
        Listening::deserialize(MapAccessDeserializer::new(WithoutOthers(map)))
    }
}

/// A section that is refused if it has one of the [`OTHERS`].
struct WithoutOthers<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutOthers<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(NoOther(seed))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}

/// A name; the parser of the file adds the line to an error.
struct NoOther<K>(K);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for NoOther<K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K::Value, D::Error> {
        let name = String::deserialize(deserializer)?;
        if let Some((_, why)) = OTHERS.iter().find(|(other, _)| *other == name) {
            return Err(D::Error::custom(format_args!("unexpected field `{name}`: {why}")));
        }
        self.0.deserialize(name.into_deserializer())
    }
}
