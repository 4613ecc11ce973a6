//! Commands about bitmaps.

use super::super::{Command, Keys, bitfields, bitmaps};

/// In the order of their names.
pub(super) const COMMANDS: &[Command] = &[
    Command::new("bitcount", -2, bitmaps::bitcount)
        .about("2.6.0", "bitmap", "How many bits of a value are set.")
        .flags(&["readonly"])
        .categories(&["@read", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("bitfield", -2, bitfields::bitfield)
        .about(
            "3.2.0",
            "bitmap",
            "Reads and changes integers of any width in a value.",
        )
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RW", "access", "update", "variable_flags"])
            .notes("This command allows both access and modification of the key")]),
    Command::new("bitfield_ro", -2, bitfields::bitfield_ro)
        .about("6.0.0", "bitmap", "Reads integers of any width in a value.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@bitmap", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("bitop", -4, bitmaps::bitop)
        .about("2.6.0", "bitmap", "Combines values bit by bit.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@bitmap", "@slow"])
        .keys(&[
            Keys::at(2, &["OW", "update"]),
            Keys::to(3, -1, 1, &["RO", "access"]),
        ]),
    Command::new("bitpos", -3, bitmaps::bitpos)
        .about(
            "2.8.7",
            "bitmap",
            "The first bit of a value that is set, or is not.",
        )
        .flags(&["readonly"])
        .categories(&["@read", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("getbit", 3, bitmaps::getbit)
        .about("2.2.0", "bitmap", "A bit of a value.")
        .flags(&["readonly", "fast"])
        .categories(&["@read", "@bitmap", "@fast"])
        .keys(&[Keys::at(1, &["RO", "access"])]),
    Command::new("setbit", 4, bitmaps::setbit)
        .about("2.2.0", "bitmap", "Sets a bit of a value.")
        .flags(&["write", "denyoom"])
        .categories(&["@write", "@bitmap", "@slow"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])]),
];
