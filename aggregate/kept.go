package aggregate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strconv"
)

// kept is an answer of the next handler that is kept to be changed.
type kept struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header { return k.header }

func (k *kept) WriteHeader(code int) {
	// 1xx come before the answer.
	if k.code == 0 && code >= http.StatusOK {
		k.code = code
	}
}

func (k *kept) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}

// ask has the next handler answer a request in the given encoding, in full.
func (h *Handler) ask(in *http.Request, accept, etag string) *kept {
	asked := in.WithContext(in.Context())
	asked.Header = in.Header.Clone()
	asked.Header.Set("Accept", accept)
	// The answer is read here; and what it is not compared with is the
	// client's copy, of which the next handler knows nothing.
	for _, name := range []string{"Accept-Encoding", "If-None-Match", "If-Modified-Since", "Range", "If-Range"} {
		asked.Header.Del(name)
	}
	if etag != "" {
		asked.Header.Set("If-None-Match", etag)
	}
	k := &kept{header: http.Header{}}
	notCacheControl(k.header)
	h.next.ServeHTTP(k, asked)
	k.WriteHeader(http.StatusOK)
	return k
}

// pass gives an answer on as it came.
func (k *kept) pass(w http.ResponseWriter) {
	maps.Copy(w.Header(), k.header)
	w.WriteHeader(k.code)
	_, _ = w.Write(k.body.Bytes()) // the client is gone if this fails
}

// passChanged gives an answer on with another body.
func (k *kept) passChanged(w http.ResponseWriter, mediaType string, body []byte) {
	maps.Copy(w.Header(), k.header)
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(k.code)
	_, _ = w.Write(body)
}

// writeDocument answers with a document that clients ask for again and again,
// most of the time in vain.
func writeDocument(w http.ResponseWriter, r *http.Request, mediaType string, body []byte) {
	sum := sha256.Sum256(body)
	etag := strconv.Quote(hex.EncodeToString(sum[:]))
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client is gone if this fails
}
