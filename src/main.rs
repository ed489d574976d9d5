use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Many kernels give huge pages to each program. Weir would then hold 2 MiB where it needs 4 KiB.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    weir::cli::run()
}
