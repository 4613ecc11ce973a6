//! What may be wrong with a map.

/// Rows that are no map of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The version of a row.
    #[error(
        "row {row} of the map: expected version 1 to {most}, found {found}: run the version of the program that wrote \
         it, or a later one"
    )]
    Version {
        /// The row.
        row: String,
        /// The newest that this program knows.
        most: u8,
        /// What stands there; none: the row is empty.
        found: String,
    },
    /// What a row holds.
    #[error("row {row} of the map: {problem}; the map is not followed until that is repaired")]
    Row {
        /// The row.
        row: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Rows that do not go together.
    #[error("the map: {problem}; it is not followed until that is repaired")]
    Whole {
        /// What does not go together.
        problem: String,
    },
    /// A number that is out.
    #[error("the map has no {what} left, of {limit} at most")]
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
}
