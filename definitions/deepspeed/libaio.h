// What DeepSpeed's operator async_io uses of libaio, by the kernel's own calls (io_submit(2)), which are all that libaio
// adds to: so no base image needs libaio, nor a package manager to install it.
//
// DeepSpeed looks at no result: its assertions are compiled out. With these functions an I/O that failed ends the
// program, which would otherwise train on with what the buffer held before; and calls that a signal interrupted, or that
// took on only some of the requests, go on.
#pragma once

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using io_context_t = aio_context_t;

namespace aio {

inline long checked(const char* what, long result, int error)
{
    if (result >= 0) { return result; }
    const char* hint = error == EAGAIN ? "; raise the limit fs.aio-max-nr" : "";
    std::fprintf(stderr, "async_io: %s failed: %s%s\n", what, std::strerror(error), hint);
    std::abort();
}

template <typename... Arguments>
long call(const char* what, long number, Arguments... arguments)
{
    long result;
    do { result = syscall(number, arguments...); } while (result < 0 && errno == EINTR);
    return checked(what, result, errno);
}

inline void prepare(struct iocb* request, int operation, int file, void* buffer, size_t size, long long offset)
{
    *request = {};
    request->aio_lio_opcode = operation;
    request->aio_fildes = file;
    request->aio_buf = reinterpret_cast<__u64>(buffer);
    request->aio_nbytes = size;
    request->aio_offset = offset;
}

}  // namespace aio

inline void io_prep_pread(struct iocb* request, int file, void* buffer, size_t size, long long offset)
{
    aio::prepare(request, IOCB_CMD_PREAD, file, buffer, size, offset);
}

inline void io_prep_pwrite(struct iocb* request, int file, void* buffer, size_t size, long long offset)
{
    aio::prepare(request, IOCB_CMD_PWRITE, file, buffer, size, offset);
}

inline int io_queue_init(int size, io_context_t* context)
{
    *context = 0;
    return aio::call("io_setup", SYS_io_setup, size, context);
}

inline int io_queue_release(io_context_t context) { return aio::call("io_destroy", SYS_io_destroy, context); }

inline int io_submit(io_context_t context, long count, struct iocb** requests)
{
    for (long done = 0; done < count;) {
        done += aio::call("io_submit", SYS_io_submit, context, count - done, requests + done);
    }
    return count;
}

// DeepSpeed passes neither a timeout nor signals.
inline int io_pgetevents(io_context_t context, long least, long most, struct io_event* events, timespec*, sigset_t*)
{
    long done = 0;
    while (done < least) {
        timespec* forever = nullptr;
        done += aio::call("io_getevents", SYS_io_getevents, context, least - done, most - done, events + done, forever);
    }
    for (long number = 0; number < done; number++) {
        const auto* request = reinterpret_cast<const struct iocb*>(events[number].obj);
        const char* what = request->aio_lio_opcode == IOCB_CMD_PREAD ? "read" : "write";
        aio::checked(what, events[number].res, -events[number].res);
        // A request that was reused meanwhile for the last, shorter block may have been longer.
        if (events[number].res < static_cast<long long>(request->aio_nbytes)) { aio::checked(what, -1, EIO); }
    }
    return done;
}
