package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// download downloads an archive into a file. An interrupted download is resumed if the server can
// confirm that the file is unchanged.
func (c *Client) download(ctx context.Context, u *url.URL, into *os.File, limits Limits, progress *meter) error {
	d := &download{client: c, url: u, file: into, limit: limits.Archive, progress: progress}
	return c.retry(ctx, u, func() (bool, error) {
		before := d.done
		err := d.try(ctx)
		return d.done > before, err
	})
}

type download struct {
	client   *Client
	url      *url.URL
	file     *os.File
	limit    int64
	progress *meter

	done      int64  // bytes in the file
	total     int64  // -1 if not known
	validator string // ETag or Last-Modified of the file, or ""
}

func (d *download) try(ctx context.Context) error {
	header := http.Header{}
	if d.done > 0 && d.validator != "" {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.done))
		header.Set("If-Range", d.validator)
	}
	answer, done, err := d.client.get(ctx, d.url, header)
	if err != nil {
		return err
	}
	defer done()
	if err := d.begin(answer); err != nil {
		return err
	}
	if d.total > d.limit {
		return permanent(d.tooLarge())
	}
	d.progress.start("download", d.done, d.total)
	n, err := io.Copy(&meteredWriter{d.file, d.progress}, io.LimitReader(answer.Body, d.limit-d.done+1))
	d.done += n
	var local *os.PathError
	switch {
	case d.done > d.limit:
		return permanent(d.tooLarge())
	case errors.As(err, &local):
		return permanent(err) // a full disk
	case err != nil:
		return err
	case d.total >= 0 && d.done != d.total:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// begin determines whether an answer is the rest of the file or all of it.
func (d *download) begin(answer *http.Response) error {
	switch answer.StatusCode {
	case http.StatusOK:
		d.done, d.total = 0, answer.ContentLength
	case http.StatusPartialContent:
		from, total, ok := contentRange(answer.Header.Get("Content-Range"))
		if !ok || from != d.done || d.done == 0 || d.total >= 0 && total != d.total {
			d.done, d.validator = 0, "" // restart with the next attempt
			return errors.New("the server sent another range of the file than requested")
		}
		return nil
	case http.StatusRequestedRangeNotSatisfiable:
		d.done, d.validator = 0, ""
		return errors.New("the server has no further data of the file after the interruption")
	default:
		return statusOf(answer)
	}
	if err := d.file.Truncate(0); err != nil {
		return permanent(err)
	}
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return permanent(err)
	}
	d.validator = answer.Header.Get("ETag")
	if d.validator == "" || strings.HasPrefix(d.validator, "W/") {
		d.validator = answer.Header.Get("Last-Modified")
	}
	return nil
}

func (d *download) tooLarge() error {
	return fmt.Errorf("%w: the archive is larger than the limit of %d bytes", ErrRefused, d.limit)
}

// contentRange parses "bytes FROM-TO/TOTAL".
func contentRange(text string) (from, total int64, ok bool) {
	text, isBytes := strings.CutPrefix(text, "bytes ")
	part, of, hasTotal := strings.Cut(text, "/")
	first, _, hasEnd := strings.Cut(part, "-")
	from, errFrom := strconv.ParseInt(first, 10, 64)
	total, errTotal := strconv.ParseInt(of, 10, 64)
	return from, total, isBytes && hasTotal && hasEnd && errFrom == nil && errTotal == nil
}

// StepProgress is the progress of an installation.
type StepProgress struct {
	// Step is download, copy, unpack or verify.
	Step string
	// Done and Total are in bytes; Total is -1 if unknown.
	Done, Total int64
}

// meter reports progress at intervals.
type meter struct {
	report   func(StepProgress)
	now      StepProgress
	reported int64
}

const reportInterval = 4 << 20

func (m *meter) start(step string, done, total int64) {
	m.now = StepProgress{Step: step, Done: done, Total: total}
	m.notify()
}

func (m *meter) add(n int64) {
	m.now.Done += n
	if n == 0 {
		return
	}
	if m.now.Done-m.reported >= reportInterval || m.now.Done == m.now.Total {
		m.notify()
	}
}

func (m *meter) notify() {
	m.reported = m.now.Done
	if m.report != nil {
		m.report(m.now)
	}
}

// meteredWriter is a writer that counts bytes.
type meteredWriter struct {
	to    io.Writer
	meter *meter
}

func (c *meteredWriter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.meter.add(int64(n))
	return n, err
}
