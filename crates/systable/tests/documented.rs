//! `docs/syscalls.md` is the table.

use std::path::Path;

#[test]
fn the_page_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/syscalls.md");
    let (page, written) = (systable::Page.to_string(), std::fs::read_to_string(&path));
    if written.ok().as_ref() != Some(&page) {
        std::fs::write(&path, &page).expect("docs can be written");
        panic!("{} was not what the table says, and is now: commit it", path.display());
    }
}
