package install

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

// download fetches an archive into a file. A download that breaks off goes on where it
// was, if the server can say that the file is still the same.
func (c *Client) download(ctx context.Context, u *url.URL, into *os.File, limits Limits, progress *meter) error {
	d := &download{client: c, url: u, file: into, limit: limits.Archive, progress: progress}
	return c.again(ctx, u, func() (bool, error) {
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

	done  int64  // bytes in the file
	total int64  // -1 if not known
	same  string // what says that the file at the server is the same as before, if anything
}

func (d *download) try(ctx context.Context) error {
	header := http.Header{}
	if d.done > 0 && d.same != "" {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.done))
		header.Set("If-Range", d.same)
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
	n, err := io.Copy(&counting{d.file, d.progress}, io.LimitReader(answer.Body, d.limit-d.done+1))
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

// begin looks whether an answer is the rest of the file or all of it.
func (d *download) begin(answer *http.Response) error {
	switch answer.StatusCode {
	case http.StatusOK:
		d.done, d.total = 0, answer.ContentLength
	case http.StatusPartialContent:
		from, total, ok := contentRange(answer.Header.Get("Content-Range"))
		if !ok || from != d.done || d.done == 0 || d.total >= 0 && total != d.total {
			d.done, d.same = 0, "" // from the beginning, next time
			return errors.New("the server sends another part of the file than was asked for")
		}
		return nil
	case http.StatusRequestedRangeNotSatisfiable:
		d.done, d.same = 0, ""
		return errors.New("the server has no more of the file than what came before the connection broke")
	default:
		return statusOf(answer)
	}
	if err := d.file.Truncate(0); err != nil {
		return permanent(err)
	}
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return permanent(err)
	}
	d.same = answer.Header.Get("ETag")
	if d.same == "" || strings.HasPrefix(d.same, "W/") {
		d.same = answer.Header.Get("Last-Modified")
	}
	return nil
}

func (d *download) tooLarge() error {
	return fmt.Errorf("%w: the archive is larger than the limit of %d bytes", ErrRefused, d.limit)
}

// contentRange reads "bytes FROM-TO/TOTAL".
func contentRange(text string) (from, total int64, ok bool) {
	text, isBytes := strings.CutPrefix(text, "bytes ")
	part, of, hasTotal := strings.Cut(text, "/")
	first, _, hasEnd := strings.Cut(part, "-")
	from, errFrom := strconv.ParseInt(first, 10, 64)
	total, errTotal := strconv.ParseInt(of, 10, 64)
	return from, total, isBytes && hasTotal && hasEnd && errFrom == nil && errTotal == nil
}

// Progress is how far an installation is.
type Progress struct {
	// Step is download, copy, unpack or verify.
	Step string
	// Done and Total are bytes; Total is -1 if it is not known.
	Done, Total int64
}

// meter tells somebody of progress, but not of every byte.
type meter struct {
	report func(Progress)
	now    Progress
	told   int64
}

const meterStep = 4 << 20

func (m *meter) start(step string, done, total int64) {
	m.now = Progress{Step: step, Done: done, Total: total}
	m.tell()
}

func (m *meter) add(n int64) {
	m.now.Done += n
	if n == 0 {
		return
	}
	if m.now.Done-m.told >= meterStep || m.now.Done == m.now.Total {
		m.tell()
	}
}

func (m *meter) tell() {
	m.told = m.now.Done
	if m.report != nil {
		m.report(m.now)
	}
}

// counting is a writer whose bytes are counted.
type counting struct {
	to    io.Writer
	meter *meter
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.meter.add(int64(n))
	return n, err
}
