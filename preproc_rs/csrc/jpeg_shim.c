/* libjpeg-turbo's scanline interface behind five functions that never jump out of C.
 *
 * A handle decodes one JPEG from memory, rows from top to bottom. Errors and the warnings that mean "these pixels are
 * guessed" become a status; other warnings are ignored, as browsers do. The memory of the caller outlives the handle. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>
#ifdef CATALEJO_JPEGINT
#include <jpegint.h>
#endif

enum status { OK = 0, CORRUPT = 1, TRUNCATED = 2, UNSUPPORTED = 3, NO_MEMORY = 4, CANCELLED = 5, TOO_MANY_SCANS = 6, DIMENSIONS = 7 };

struct catalejo_jpeg {
  struct jpeg_decompress_struct c; /* first member: libjpeg hands back this pointer */
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf stop;
  int status;
  int max_scans;
  int cut;            /* the data ended without an end marker */
  uint32_t seen;      /* bit i: a scan of component i was read; for JPEGs of several scans */
  size_t plane;
  const volatile uint8_t *cancel;
  char message[JMSG_LENGTH_MAX];
};

struct catalejo_jpeg_info {
  uint32_t width, height;
  uint32_t components;
  uint32_t four_colours;       /* CMYK or YCCK: rows come as CMYK, 4 bytes a pixel; else RGB, 3 bytes */
  uint32_t planes;             /* rows may come as planes of Y, Cb and Cr */
  uint32_t multiple_scans;     /* progressive, or several scans: all coefficients are held */
  uint64_t coefficient_bytes;  /* how many bytes that is */
};

static struct catalejo_jpeg *of(j_common_ptr c) { return (struct catalejo_jpeg *)c; }

static int status_of(int code) {
  switch (code) {
    case JERR_OUT_OF_MEMORY: return NO_MEMORY;
    case JERR_INPUT_EMPTY: case JERR_INPUT_EOF: case JERR_NO_IMAGE: case JWRN_HIT_MARKER: return TRUNCATED;
    case JERR_NOT_COMPILED: case JERR_SOF_UNSUPPORTED: case JERR_BAD_PRECISION: case JERR_CONVERSION_NOTIMPL:
    case JERR_CCIR601_NOTIMPL: case JERR_FRACT_SAMPLE_NOTIMPL: case JERR_ARITH_NOTIMPL: return UNSUPPORTED;
    case JERR_EMPTY_IMAGE: case JERR_IMAGE_TOO_BIG: return DIMENSIONS;
    default: return CORRUPT;
  }
}

static void fail(j_common_ptr c, int status) {
  struct catalejo_jpeg *j = of(c);
  j->status = status;
  longjmp(j->stop, 1);
}

static void error_exit(j_common_ptr c) {
  c->err->format_message(c, of(c)->message);
  fail(c, status_of(c->err->msg_code));
}

static void emit_message(j_common_ptr c, int level) {
  if (level >= 0) return;
  if (c->err->msg_code == JWRN_JPEG_EOF) of(c)->cut = 1;
  switch (c->err->msg_code) {
    case JWRN_HIT_MARKER: case JWRN_HUFF_BAD_CODE: case JWRN_ARITH_BAD_CODE: case JWRN_MUST_RESYNC: error_exit(c);
  }
}

static void output_message(j_common_ptr c) { (void)c; }

static void monitor(j_common_ptr c) {
  struct catalejo_jpeg *j = of(c);
  if (j->cancel && *j->cancel) fail(c, CANCELLED);
  for (int i = 0; i < j->c.comps_in_scan; i++) j->seen |= 1u << j->c.cur_comp_info[i]->component_index;
  if (j->c.input_scan_number > j->max_scans) {
    snprintf(j->message, sizeof j->message, "more than %d scans", j->max_scans);
    fail(c, TOO_MANY_SCANS);
  }
}

/* A file cut between two scans raises no warning, yet what its other scans held is guessed: grey colours, or a blur. Files that
 * end properly may leave out refinements (some tools drop them on purpose), but no component. */
static void check_scans(struct catalejo_jpeg *j) {
  int missing = j->seen != (1u << j->c.num_components) - 1;
  if (j->cut && j->c.coef_bits)
    for (int i = 0; i < j->c.num_components; i++)
      for (int k = 0; k < DCTSIZE2; k++) missing |= j->c.coef_bits[i][k] != 0;
  if (!missing) return;
  snprintf(j->message, sizeof j->message, "%s", "some of its scans are missing");
  fail((j_common_ptr)&j->c, TRUNCATED);
}

void catalejo_jpeg_close(struct catalejo_jpeg *j) {
  if (!j) return;
  jpeg_destroy_decompress(&j->c);
  free(j);
}

/* Reads the header. NULL: no memory for the handle. */
struct catalejo_jpeg *catalejo_jpeg_open(const uint8_t *data, size_t size, const volatile uint8_t *cancel,
                                         struct catalejo_jpeg_info *info) {
  struct catalejo_jpeg *j = calloc(1, sizeof *j);
  if (!j) return NULL;
  j->c.err = jpeg_std_error(&j->errors);
  j->errors.error_exit = error_exit;
  j->errors.emit_message = emit_message;
  j->errors.output_message = output_message;
  j->cancel = cancel;
  j->max_scans = 1;
  memset(info, 0, sizeof *info);
  if (setjmp(j->stop)) return j;
  jpeg_create_decompress(&j->c);
  jpeg_mem_src(&j->c, data, (unsigned long)size);
  jpeg_read_header(&j->c, TRUE);
  info->width = j->c.image_width;
  info->height = j->c.image_height;
  info->components = (uint32_t)j->c.num_components;
  info->four_colours = j->c.jpeg_color_space == JCS_CMYK || j->c.jpeg_color_space == JCS_YCCK;
#ifdef CATALEJO_JPEGINT
  info->planes = j->c.jpeg_color_space == JCS_YCbCr && j->c.num_components == 3;
#endif
  info->multiple_scans = jpeg_has_multiple_scans(&j->c) != 0;
  for (int i = 0; i < j->c.num_components; i++) {
    const jpeg_component_info *p = &j->c.comp_info[i];
    info->coefficient_bytes += (uint64_t)p->width_in_blocks * p->height_in_blocks * sizeof(JBLOCK);
  }
  return j;
}

#ifdef CATALEJO_JPEGINT
/* Takes the place of libjpeg-turbo's conversion to RGB: rows stay as they leave the upsampling. */
static void keep_planes(j_decompress_ptr c, JSAMPIMAGE planes, JDIMENSION row, JSAMPARRAY out, int rows) {
  size_t plane = of((j_common_ptr)c)->plane;
  for (int i = 0; i < rows; i++)
    for (int k = 0; k < 3; k++) memcpy(out[i] + k * plane, planes[k][row + i], c->output_width);
}
#endif

/* Begins decoding; a JPEG of several scans is read here. `plane`: 0, or bytes from one plane of a row to the next. */
int catalejo_jpeg_start(struct catalejo_jpeg *j, int four_colours, size_t plane, int max_scans) {
  j->max_scans = max_scans;
  j->plane = plane;
  j->progress.progress_monitor = monitor;
  j->c.progress = &j->progress;
  if (setjmp(j->stop)) return j->status;
  j->c.out_color_space = four_colours ? JCS_CMYK : plane ? JCS_YCbCr : JCS_RGB;
  j->c.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&j->c);
  if (jpeg_has_multiple_scans(&j->c)) check_scans(j);
#ifdef CATALEJO_JPEGINT
  if (plane) j->c.cconvert->color_convert = keep_planes;
#endif
  return OK;
}

/* `rows` rows into `out`, `stride` bytes apart; the caller asks for no more than are left. */
int catalejo_jpeg_read(struct catalejo_jpeg *j, uint8_t *out, size_t stride, uint32_t rows) {
  if (setjmp(j->stop)) return j->status;
  uint32_t done = 0;
  while (done < rows) {
    JSAMPROW pointers[16];
    uint32_t n = rows - done < 16 ? rows - done : 16;
    for (uint32_t i = 0; i < n; i++) pointers[i] = out + (done + i) * stride;
    uint32_t got = jpeg_read_scanlines(&j->c, pointers, n);
    if (!got) {
      j->status = TRUNCATED;
      return j->status;
    }
    done += got;
  }
  return OK;
}

int catalejo_jpeg_status(const struct catalejo_jpeg *j) { return j->status; }
const char *catalejo_jpeg_message(const struct catalejo_jpeg *j) { return j->message; }
