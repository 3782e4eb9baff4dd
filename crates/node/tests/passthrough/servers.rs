//! Servers under the runtime: clients get what they get without it, and it ends as it does without it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::guests::servers::{self, Place, Server};
use crate::guests::serving::{Family, Running, free_port, until};
use crate::proved;

fn serves(set_up: fn(&Place) -> Server) {
    let place = Place::new(free_port());
    let server = set_up(&place);
    let mut words = proved();
    words.extend(server.command.iter().map(PathBuf::from));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(place.work()).process_group(0);
    let family = Family::of(Running(command.spawn().unwrap()));
    until("the server answers", &server.answers);
    (server.serves)();
    server.end.expect(family.end(server.end.signal));
}

macro_rules! tests {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            serves(servers::$name);
        }
    )*};
}

servers::each!(tests);
