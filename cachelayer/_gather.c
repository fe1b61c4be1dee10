/* Copy ranges of bytes out of several buffers, such as mapped files, without the interpreter lock.

   A buffer is a row of a table: its address, its bytes, 1 if it is an ArrayRecord file, and the least start of a range
   in it. Such a file has a block header of 24 bytes at every multiple of 64 KiB, and starts do not count the headers:

       position    0      24              65536     65560
                   | head | bytes 0 ...   | head    | bytes 65512 ...

   Every range is compared with its buffer before the first byte is copied. `_gather_numpy.py` has the same two
   functions in numpy, and says what they do. The caller keeps the buffers alive. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

enum { HEADER = 24, BLOCK = 1 << 16, PAYLOAD = BLOCK - HEADER };
/* How many ranges ahead memory is asked for, and how much of a range: the processor itself asks for what follows.
   FEW_NBYTES are copied before another thread would have the interpreter lock. */
enum { AHEAD = 6, LINE = 64, MOST_LINES = 8, FEW_NBYTES = 1 << 17 };

typedef struct {
    int64_t address;
    int64_t nbytes;
    int64_t has_headers;
    int64_t first;
} Buffer;

/* Arrays that were passed to a call. */
typedef struct {
    Py_buffer views[8];
    int count;
} Arrays;

static void release(Arrays *arrays) {
    while (arrays->count)
        PyBuffer_Release(&arrays->views[--arrays->count]);
}

/* Return the items of an array of int64, and how many there are; NULL with an exception if it is no such array. */
static const int64_t *int64_items(Arrays *arrays, PyObject *array, Py_ssize_t *count) {
    Py_buffer *view = &arrays->views[arrays->count];
    if (PyObject_GetBuffer(array, view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    arrays->count++;
    const char *format = view->format ? view->format : "B";
    int is_int64 = view->itemsize == 8 && (!strcmp(format, "l") || !strcmp(format, "q"));
    if (!is_int64 || (uintptr_t)view->buf % sizeof(int64_t)) {
        PyErr_SetString(PyExc_TypeError, "expected an aligned array of int64");
        return NULL;
    }
    *count = view->len / 8;
    static const int64_t none = 0;
    return view->buf ? view->buf : &none;
}

/* The same of an array that has an item for each of `count` ranges. */
static const int64_t *items_of_ranges(Arrays *arrays, PyObject *array, Py_ssize_t count) {
    Py_ssize_t items;
    const int64_t *values = int64_items(arrays, array, &items);
    if (values && items != count) {
        PyErr_SetString(PyExc_ValueError, "expected arrays of one length");
        return NULL;
    }
    return values;
}

typedef struct {
    Arrays arrays;
    const Buffer *buffers;
    Py_ssize_t buffer_count;
    const int64_t *buffer_of; /* NULL if all ranges lie in the first buffer */
    const int64_t *starts;
    Py_ssize_t count;
    char *out;
    int64_t out_nbytes;
} Call;

static int parse(Call *call, PyObject *table, PyObject *buffer_of, PyObject *starts, PyObject *out) {
    Py_ssize_t items;
    const int64_t *rows = int64_items(&call->arrays, table, &items);
    if (!rows)
        return -1;
    if (items % 4) {
        PyErr_SetString(PyExc_ValueError, "expected a table of four columns");
        return -1;
    }
    call->buffers = (const Buffer *)rows;
    call->buffer_count = items / 4;
    call->starts = int64_items(&call->arrays, starts, &call->count);
    if (!call->starts)
        return -1;
    if (buffer_of != Py_None && !(call->buffer_of = items_of_ranges(&call->arrays, buffer_of, call->count)))
        return -1;
    Py_buffer *view = &call->arrays.views[call->arrays.count];
    if (PyObject_GetBuffer(out, view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    call->arrays.count++;
    call->out = view->buf;
    call->out_nbytes = view->len;
    return 0;
}

/* Return the bytes of a buffer without its block headers. */
static int64_t room_of(const Buffer *buffer) {
    if (!buffer->has_headers)
        return buffer->nbytes;
    int64_t rest = buffer->nbytes % BLOCK - HEADER;
    return buffer->nbytes / BLOCK * PAYLOAD + (rest > 0 ? rest : 0);
}

static int lies_outside(int64_t start, int64_t nbytes, int64_t first, int64_t room) {
    return start < first || start < 0 || nbytes < 0 || nbytes > room || start > room - nbytes;
}

/* Return the buffer of a range, NULL for a range that does not lie in one. */
static const Buffer *buffer_with(const Call *call, Py_ssize_t range, int64_t offset, int64_t nbytes) {
    int64_t number = call->buffer_of ? call->buffer_of[range] : 0;
    if (number < 0 || number >= call->buffer_count)
        return NULL;
    const Buffer *buffer = &call->buffers[number];
    /* Nothing overflows: what is left of the room is never negative, and a start is compared with it alone. */
    int64_t room = room_of(buffer) - offset;
    return room < 0 || lies_outside(call->starts[range], nbytes, buffer->first, room) ? NULL : buffer;
}

static const char *place_in(const Call *call, Py_ssize_t range, int64_t offset, int64_t *until_header) {
    const Buffer *buffer = &call->buffers[call->buffer_of ? call->buffer_of[range] : 0];
    int64_t start = call->starts[range] + offset;
    const char *base = (const char *)(intptr_t)buffer->address;
    if (!buffer->has_headers) {
        *until_header = INT64_MAX;
        return base + start;
    }
    int64_t block = start / PAYLOAD;
    *until_header = (block + 1) * PAYLOAD - start;
    return base + start + HEADER * (block + 1);
}

static void copy(const Call *call, Py_ssize_t range, int64_t offset, int64_t nbytes, char *to) {
    int64_t piece;
    const char *from = place_in(call, range, offset, &piece);
    while (nbytes > piece) {
        memcpy(to, from, (size_t)piece);
        to += piece;
        from += piece + HEADER;
        nbytes -= piece;
        piece = PAYLOAD;
    }
    memcpy(to, from, (size_t)nbytes);
}

static void prefetch(const Call *call, Py_ssize_t range, int64_t offset, int64_t nbytes) {
    int64_t piece;
    const char *from = place_in(call, range, offset, &piece);
    int64_t end = nbytes < MOST_LINES * LINE ? nbytes : MOST_LINES * LINE;
    for (int64_t place = 0; place < end; place += LINE)
        PREFETCH(from + place);
}

static PyThreadState *release_lock(const Call *call) {
    return call->out_nbytes < FEW_NBYTES ? NULL : PyEval_SaveThread();
}

static PyObject *finish(Call *call, PyThreadState *state, Py_ssize_t bad) {
    if (state)
        PyEval_RestoreThread(state);
    release(&call->arrays);
    return PyLong_FromSsize_t(bad);
}

static PyObject *copy_rows(PyObject *module, PyObject *args) {
    PyObject *table, *buffer_of, *starts, *out;
    long long offset, nbytes;
    Call call = {0};
    Py_ssize_t bad = -1;
    if (!PyArg_ParseTuple(args, "OOOLLO", &table, &buffer_of, &starts, &offset, &nbytes, &out))
        return NULL;
    if (parse(&call, table, buffer_of, starts, out) < 0)
        goto fail;
    int is_whole = offset >= 0 && nbytes >= 0 && (!call.count || nbytes <= call.out_nbytes / call.count);
    if (!is_whole || nbytes * call.count != call.out_nbytes) {
        PyErr_SetString(PyExc_ValueError, "the rows do not fill the target");
        goto fail;
    }
    PyThreadState *state = release_lock(&call);
    for (Py_ssize_t row = 0; row < call.count && bad < 0; row++)
        if (!buffer_with(&call, row, offset, nbytes))
            bad = row;
    for (Py_ssize_t row = 0; row < call.count && bad < 0 && nbytes; row++) {
        if (row + AHEAD < call.count)
            prefetch(&call, row + AHEAD, offset, nbytes);
        copy(&call, row, offset, nbytes, call.out + row * nbytes);
    }
    return finish(&call, state, bad);
fail:
    release(&call.arrays);
    return NULL;
}

static PyObject *copy_ranges(PyObject *module, PyObject *args) {
    PyObject *table, *buffer_of, *starts, *lengths_array, *out, *places_array;
    Call call = {0};
    Py_ssize_t bad = -1;
    if (!PyArg_ParseTuple(args, "OOOOOO", &table, &buffer_of, &starts, &lengths_array, &out, &places_array))
        return NULL;
    if (parse(&call, table, buffer_of, starts, out) < 0)
        goto fail;
    const int64_t *lengths = items_of_ranges(&call.arrays, lengths_array, call.count);
    const int64_t *places = lengths ? items_of_ranges(&call.arrays, places_array, call.count) : NULL;
    if (!places)
        goto fail;
    PyThreadState *state = release_lock(&call);
    for (Py_ssize_t range = 0; range < call.count && bad < 0; range++)
        if (!buffer_with(&call, range, 0, lengths[range]) || lies_outside(places[range], lengths[range], 0, call.out_nbytes))
            bad = range;
    for (Py_ssize_t range = 0; range < call.count && bad < 0; range++) {
        if (range + AHEAD < call.count)
            prefetch(&call, range + AHEAD, 0, lengths[range + AHEAD]);
        if (lengths[range])
            copy(&call, range, 0, lengths[range], call.out + places[range]);
    }
    return finish(&call, state, bad);
fail:
    release(&call.arrays);
    return NULL;
}

static PyMethodDef methods[] = {
    {"copy_rows", copy_rows, METH_VARARGS, "copy_rows(table, buffer_of, starts, offset, nbytes, out)"},
    {"copy_ranges", copy_ranges, METH_VARARGS, "copy_ranges(table, buffer_of, starts, lengths, out, places)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "cachelayer._gather", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__gather(void) {
    return PyModuleDef_Init(&definition);
}
