//! The table as people read it.

use core::fmt::{self, Display, Formatter};

use crate::{Class, Entry, Refusal, Rule, Shape, Size, Sysno, entry};

/// `docs/syscalls.md`.
pub struct Page;

const HEAD: &str = "# System calls

Made from `crates/systable/src/table.rs` by `cargo test -p systable`; edits are lost.

What becomes of each call of a program that is recorded and replayed. Pass-through knows one class
alone: what is *absent* is absent there as well.

| class | recorded | replayed |
|---|---|---|
| execute | made | made; the results must be the same |
| repeat | made | made; the result comes from the record |
| emulate | made | answered from the record: the result, and what the kernel wrote to memory |
| output | made, once everything that it depends on is stable | not sent; the bytes must have the same hash |
| local | the runtime's affair | the same |
| absent | `ENOSYS` | the same |
| ends | made; recording ends, and says why | |

*by descriptor* has two classes: for what each replica has for itself (files, pipes within it), and for
what leads outside (connections, terminals, timers). *by command* has one for each command; a command
that has none ends recording.

Arguments: `→` is read, `←` is written, `↔` both. A length is in bytes, that of another argument, that of
the result, or the length that a structure says itself.

| number | call | class | arguments |
|--:|---|---|---|
";

impl Display for Page {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(HEAD)?;
        for (number, name) in (0..1024).filter_map(|number| Some((number, Sysno::new(number)?))) {
            let entry = entry(name);
            write!(f, "| {number} | `{name}` | {} |", entry.rule)?;
            for (i, argument) in entry.arguments.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                write!(f, "{comma} {}{}", argument.name, Seen(&argument.shape, entry))?;
            }
            writeln!(f, " |")?;
        }
        Ok(())
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Rule::Always(class) => write!(f, "{class}"),
            Rule::Descriptor { inside, outside } => {
                write!(f, "by descriptor: {inside}, {outside}")
            }
            Rule::Command(_) => f.write_str("by command"),
        }
    }
}

impl Display for Class {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(match self {
            Class::Execute => "execute",
            Class::Repeat => "repeat",
            Class::Emulate => "emulate",
            Class::Output => "output",
            Class::Local => "local",
            Class::Refuse(Refusal::Absent) => "absent",
            Class::Refuse(Refusal::Ends) => "ends",
        })
    }
}

/// A shape, with the names of the arguments that it refers to.
struct Seen<'a>(&'a Shape, &'a Entry);

impl Display for Seen<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let named = |number: &u8| self.1.arguments[usize::from(*number)].name;
        let (way, size) = match self.0 {
            Shape::Number | Shape::Descriptor => return Ok(()),
            Shape::Address => return f.write_str(" (address)"),
            Shape::Path => return f.write_str(" → string"),
            Shape::In(size) => ("→", size),
            Shape::Out(size) => ("←", size),
            Shape::InOut(size) => ("↔", size),
        };
        write!(f, " {way} ")?;
        match size {
            Size::Bytes(len) => write!(f, "{len}"),
            Size::Argument(at) => f.write_str(named(at)),
            Size::Items(at, len) => write!(f, "{} × {len}", named(at)),
            Size::Result(most) => write!(f, "result ≤ {}", named(most)),
            Size::ResultItems(most, len) => write!(f, "(result ≤ {}) × {len}", named(most)),
            Size::At(at) => write!(f, "\\*{}", named(at)),
            Size::Bits(at) => write!(f, "{} bits", named(at)),
            Size::Vectors(at) => write!(f, "{} vectors", named(at)),
            Size::Message => f.write_str("message"),
            Size::Messages(at) => write!(f, "{} messages", named(at)),
            Size::Strings => f.write_str("strings"),
            Size::Command => f.write_str("by command"),
            Size::Own => f.write_str("own length"),
        }
    }
}
