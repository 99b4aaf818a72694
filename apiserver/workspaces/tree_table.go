package workspaces

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// workspaceColumn is the first column of tables over a tree: clients such as kubectl print the columns that the server sends.
func workspaceColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Workspace", Type: "string", Description: "The path of the workspace that has the object."}
}

// withWorkspaceColumn makes the answer to a request for tables have the workspace of each row. finish writes the rest of the answer.
func withWorkspaceColumn(w http.ResponseWriter, r *http.Request) (_ http.ResponseWriter, _ *http.Request, finish func()) {
	var accept []string
	for kind := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if strings.HasPrefix(strings.TrimSpace(kind), "application/json") {
			accept = append(accept, kind)
		}
	}
	if len(accept) == 0 || !strings.Contains(accept[0], "as=Table") {
		return w, r, func() {}
	}
	t := &tableWriter{ResponseWriter: w}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", strings.Join(accept, ","))
	r.Header.Del("Accept-Encoding")
	if query := r.URL.Query(); query.Get("includeObject") == string(metav1.IncludeNone) {
		t.withoutObjects = true // but the metadata has the workspace
		query.Set("includeObject", string(metav1.IncludeMetadata))
		r.URL.RawQuery = query.Encode()
	}
	return responsewriter.WrapForHTTP1Or2(t), r, t.finish
}

// tableWriter adds the workspace to the tables that are written: one, or those of the events of a watch.
type tableWriter struct {
	http.ResponseWriter
	withoutObjects bool
	// rest is the beginning of a document that is not complete.
	rest []byte
}

var _ responsewriter.UserProvidedDecorator = &tableWriter{}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (t *tableWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (t *tableWriter) WriteHeader(code int) {
	t.Header().Del("Content-Length")
	t.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter. Upstream ends each document with a newline.
func (t *tableWriter) Write(data []byte) (int, error) {
	t.rest = append(t.rest, data...)
	for bytes.HasSuffix(t.rest, []byte("\n")) {
		var document json.RawMessage
		decoder := json.NewDecoder(bytes.NewReader(t.rest))
		if decoder.Decode(&document) != nil {
			break
		}
		if _, err := t.ResponseWriter.Write(append(t.columned(document), '\n')); err != nil {
			return 0, err
		}
		t.rest = bytes.TrimLeft(t.rest[decoder.InputOffset():], "\n")
	}
	return len(data), nil
}

func (t *tableWriter) finish() {
	if len(t.rest) > 0 {
		_, _ = t.ResponseWriter.Write(t.columned(t.rest))
		t.rest = nil
	}
}

// columned returns a document with the workspaces of its table, if it is one, or an event with one.
func (t *tableWriter) columned(document []byte) []byte {
	var is struct {
		Kind   string          `json:"kind"`
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if json.Unmarshal(document, &is) != nil {
		return document
	}
	if is.Kind == "Table" {
		return addWorkspaces(document, t.withoutObjects)
	}
	if is.Kind != "" || len(is.Object) == 0 {
		return document
	}
	event, err := json.Marshal(map[string]any{"type": is.Type, "object": json.RawMessage(t.columned(is.Object))})
	if err != nil {
		return document
	}
	return event
}

// addWorkspaces adds the workspace of each row to a table. Cells are kept as they are encoded.
func addWorkspaces(document []byte, withoutObjects bool) []byte {
	var table map[string]json.RawMessage
	var columns []json.RawMessage
	var rows []map[string]json.RawMessage
	if json.Unmarshal(document, &table) != nil || json.Unmarshal(orNull(table["columnDefinitions"]), &columns) != nil || json.Unmarshal(orNull(table["rows"]), &rows) != nil {
		return document
	}
	encode := func(value any) json.RawMessage {
		data, _ := json.Marshal(value) // maps, slices and strings
		return data
	}
	if len(columns) > 0 { // later events of a watch have none
		table["columnDefinitions"] = encode(slices.Insert(columns, 0, encode(workspaceColumn())))
	}
	for _, row := range rows {
		var object metav1.PartialObjectMetadata
		var cells []json.RawMessage
		if json.Unmarshal(orNull(row["object"]), &object) != nil || json.Unmarshal(orNull(row["cells"]), &cells) != nil {
			return document
		}
		row["cells"] = encode(slices.Insert(cells, 0, encode(object.Annotations[WorkspaceAnnotation])))
		if withoutObjects {
			row["object"] = json.RawMessage("null")
		}
	}
	if table["rows"] != nil {
		table["rows"] = encode(rows)
	}
	return encode(table)
}

func orNull(data json.RawMessage) []byte {
	if len(data) == 0 {
		return []byte("null")
	}
	return data
}
