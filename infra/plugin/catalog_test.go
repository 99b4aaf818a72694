package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// TestCatalog loads the fake's schemas in each protocol version, writes them to a file, and
// compares the file's content with a golden file.
func TestCatalog(t *testing.T) {
	for _, mode := range []string{"5", "6", "6,old"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, Config{})
			catalog, err := h.Catalog(t.Context(), fakeBinary(t), fakeVariables(mode))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "catalog")
			for range 2 { // the second time the file exists
				if err := catalog.WriteFile(path); err != nil {
					t.Fatal(err)
				}
			}
			read, err := ReadCatalog(path)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "catalog-"+strings.ReplaceAll(mode, ",", "-")+".txt", describe(t, read))
			if loaded := describe(t, catalog); loaded != describe(t, read) {
				t.Errorf("the loaded catalog differs from the one in the file:\n%s", loaded)
			}
			// With a catalog, the provider is not asked for its schemas.
			settings := fakeSettings(mode)
			settings.Catalog = read
			mustRead(t, openFake(t, h, settings), "")
			if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
				t.Errorf("files next to the catalog: %v, %v", files, err)
			}
		})
	}
}

// TestCatalogOfAnotherVersion: a catalog of another protocol version is rejected.
func TestCatalogOfAnotherVersion(t *testing.T) {
	t.Parallel()
	h := newHost(t, Config{})
	catalog, err := h.Catalog(t.Context(), fakeBinary(t), fakeVariables("5"))
	if err != nil {
		t.Fatal(err)
	}
	settings := fakeSettings("6")
	settings.Catalog = catalog
	if _, _, err := h.Open(t.Context(), fakeBinary(t), settings); !errors.Is(err, providerapi.ErrNotCalled) || !strings.Contains(err.Error(), "load the catalog again") {
		t.Errorf("a catalog of another version: %v", err)
	}
}

// describe formats a whole catalog.
func describe(t *testing.T, c *Catalog) string {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "protocol %d, plan destroy %v, schema optional %v\n", c.protocol, c.planDestroy, c.schemaOptional)
	describeSchema(&out, "configuration", c.Config())
	for _, name := range c.Resources() {
		schema, err := c.Resource(name)
		if err != nil {
			t.Fatal(err)
		}
		describeSchema(&out, "resource "+name, schema)
	}
	for _, name := range c.DataSources() {
		schema, err := c.DataSource(name)
		if err != nil {
			t.Fatal(err)
		}
		describeSchema(&out, "data source "+name, schema)
	}
	return out.String()
}

func describeSchema(out *strings.Builder, name string, s *providerapi.Schema) {
	fmt.Fprintf(out, "%s, version %d\n", name, s.Version)
	for _, i := range s.Identity {
		fmt.Fprintf(out, "  identity %+v\n", i)
	}
	describeBlock(out, "  ", &s.Block)
}

func describeBlock(out *strings.Builder, indent string, b *providerapi.Block) {
	if b.Description != "" || b.Markdown || b.Deprecated {
		fmt.Fprintf(out, "%s%q markdown %v deprecated %v\n", indent, b.Description, b.Markdown, b.Deprecated)
	}
	describeAttributes(out, indent, b.Attributes)
	for _, n := range b.Blocks {
		fmt.Fprintf(out, "%sblock %s: %s, %d to %d, %#v\n", indent, n.Name, n.Nesting, n.Min, n.Max, n.ImpliedType())
		describeBlock(out, indent+"  ", &n.Block)
	}
}

func describeAttributes(out *strings.Builder, indent string, attributes []providerapi.Attribute) {
	for _, a := range attributes {
		fmt.Fprintf(out, "%s%s: %#v", indent, a.Name, a.Type)
		for word, is := range map[string]bool{" required": a.Required, " optional": a.Optional} {
			if is {
				out.WriteString(word) // never both
			}
		}
		for _, word := range []struct {
			text string
			is   bool
		}{{" computed", a.Computed}, {" sensitive", a.Sensitive}, {" write-only", a.WriteOnly}} {
			if word.is {
				out.WriteString(word.text)
			}
		}
		out.WriteString("\n")
		if a.Nested != nil {
			fmt.Fprintf(out, "%s  %s of\n", indent, a.Nested.Nesting)
			describeAttributes(out, indent+"    ", a.Nested.Attributes)
		}
	}
}

// TestDamagedCatalog: a damaged file is either rejected or decodes to the original catalog.
func TestDamagedCatalog(t *testing.T) {
	catalog, err := newCatalog(6, wideAnswer(t, 3, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "catalog")
	if err := catalog.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, damaged []byte) {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCatalog(path); !errors.Is(err, errFile) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range whole {
		refused(fmt.Sprintf("truncated to %d bytes", n), whole[:n])
		flipped := bytes.Clone(whole)
		flipped[n] ^= 0x20
		refused(fmt.Sprintf("byte %d changed", n), flipped)
	}
	refused("another version", bytes.Replace(whole, []byte("version 2"), []byte("version 1"), 1))
	if _, err := ReadCatalog(path + "-absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := catalog.WriteFile(filepath.Join(path, "below a file")); err == nil {
		t.Error("written below a file")
	}
}

// TestInvalidSchemas: a provider can send invalid schemas.
func TestInvalidSchemas(t *testing.T) {
	answer := func(change func(*tfplugin6.GetProviderSchema_Response)) []byte {
		a := (&fake{}).schema6()
		change(a)
		encoded, err := proto.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	thing := func(a *tfplugin6.GetProviderSchema_Response) *tfplugin6.Schema_Block {
		return a.ResourceSchemas["fake_thing"].Block
	}
	nested := func(a *tfplugin6.GetProviderSchema_Response) *tfplugin6.Schema_Block {
		return a.ResourceSchemas["fake_nested"].Block
	}
	for name, row := range map[string]struct {
		of     string
		change func(*tfplugin6.GetProviderSchema_Response)
		says   string
	}{
		"no configuration": {change: func(a *tfplugin6.GetProviderSchema_Response) { a.Provider = nil }, says: "no schema for the provider configuration"},
		"a complaint": {change: func(a *tfplugin6.GetProviderSchema_Response) {
			a.Diagnostics = []*tfplugin6.Diagnostic{{Severity: tfplugin6.Diagnostic_ERROR, Summary: "Broken", Detail: "Badly."}}
		}, says: "Broken: Badly."},
		"a nameless type": {change: func(a *tfplugin6.GetProviderSchema_Response) { a.ResourceSchemas[""] = &tfplugin6.Schema{} }, says: "the name of a type is empty"},
		"a type that is none": {"fake_thing", func(a *tfplugin6.GetProviderSchema_Response) { thing(a).Attributes[0].Type = []byte(`["list"]`) },
			`schema of fake_thing: attribute "name": invalid type`},
		"no type":            {"fake_thing", func(a *tfplugin6.GetProviderSchema_Response) { thing(a).Attributes[0].Type = nil }, `attribute "name": it has no type`},
		"an attribute twice": {"fake_thing", func(a *tfplugin6.GetProviderSchema_Response) { thing(a).Attributes[1].Name = "name" }, `attribute "name" is defined twice`},
		"attribute and block": {"fake_thing", func(a *tfplugin6.GetProviderSchema_Response) { thing(a).BlockTypes[0].TypeName = "name" },
			`"name" is both an attribute and a block`},
		"a block twice": {"fake_nested", func(a *tfplugin6.GetProviderSchema_Response) { nested(a).BlockTypes[1].TypeName = "single_block" },
			`block "single_block" is defined twice`},
		"nesting of blocks": {"fake_nested", func(a *tfplugin6.GetProviderSchema_Response) { nested(a).BlockTypes[0].Nesting = 9 }, `block "single_block": nesting 9 is unknown`},
		"nesting of attributes": {"fake_nested", func(a *tfplugin6.GetProviderSchema_Response) { nested(a).Attributes[0].NestedType.Nesting = 0 },
			`attribute "one": nesting INVALID is unknown`},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := newCatalog(6, answer(row.change), nil)
			if row.of != "" && err == nil {
				_, err = c.Resource(row.of)
			}
			if err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%v", err)
			}
		})
	}
	whole := answer(func(*tfplugin6.GetProviderSchema_Response) {})
	for n := range whole {
		// A truncated message can be valid by chance. It must not panic.
		c, err := newCatalog(6, whole[:n], nil)
		if err != nil {
			continue
		}
		for _, name := range c.Resources() {
			_, _ = c.Resource(name)
		}
	}
}

// TestSchemasAreReadOnce: a schema is decoded once while it is cached, also with concurrent
// readers.
func TestSchemasAreReadOnce(t *testing.T) {
	c, err := newCatalog(6, wideAnswer(t, 200, 10), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.read.limit = 1 << 18
	first, err := c.Resource(c.Resources()[0])
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := c.Resource(c.Resources()[0]); again != first {
		t.Error("the schema was decoded again")
	}
	var readers sync.WaitGroup
	for n := range 4 {
		readers.Go(func() {
			for m := range c.Resources() {
				if _, err := c.Resource(c.Resources()[(m+50*n)%200]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	readers.Wait()
	if c.read.size > c.read.limit || c.read.used.Len() != len(c.read.by) || len(c.read.by) == 200 || len(c.read.by) < 10 {
		t.Errorf("%d schemas of %d bytes are cached", len(c.read.by), c.read.size)
	}
	size := 0
	for e := range c.read.by {
		size += e.size
	}
	if size != c.read.size {
		t.Errorf("they have %d bytes, want %d", size, c.read.size)
	}
}

// wideAnswer is the answer of a provider with the given numbers of types and attributes, with
// descriptions like those of generated documentation.
func wideAnswer(tb testing.TB, types, attributes int) []byte {
	tb.Helper()
	shapes := []string{`"string"`, `"number"`, `"bool"`, `["list","string"]`, `["map","string"]`, `["set",["object",{"key":"string","value":"number"}]]`}
	a := &tfplugin6.GetProviderSchema_Response{Provider: &tfplugin6.Schema{}, ResourceSchemas: map[string]*tfplugin6.Schema{}}
	for n := range types {
		block := &tfplugin6.Schema_Block{Description: fmt.Sprintf("Manages the things of service %d.", n)}
		for m := range attributes {
			block.Attributes = append(block.Attributes, &tfplugin6.Schema_Attribute{
				Name: fmt.Sprintf("attribute_%d_of_%d", m, n%97), Type: []byte(shapes[(n+m)%len(shapes)]),
				Optional: m%2 == 0, Computed: m%3 == 0, Sensitive: m%19 == 0,
				Description: fmt.Sprintf("The %d. setting of the thing, between %d and %d, which cannot be changed while it is in use by %d others.", m, n, n*m, n^m),
			})
		}
		a.ResourceSchemas[fmt.Sprintf("wide_thing_%04d", n)] = &tfplugin6.Schema{Block: block}
	}
	encoded, err := proto.Marshal(a)
	if err != nil {
		tb.Fatal(err)
	}
	return encoded
}

// BenchmarkCatalog measures a catalog of 1,500 types with 40 attributes each: the time to load it,
// and its memory after loading and with a full cache of decoded schemas.
func BenchmarkCatalog(b *testing.B) {
	answer := wideAnswer(b, 1500, 40)
	path := filepath.Join(b.TempDir(), "catalog")
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			c, err := newCatalog(6, answer, nil)
			if err != nil {
				b.Fatal(err)
			}
			if err := c.WriteFile(path); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(answer))/1500, "answer-B/type")
	})
	b.Run("file", func(b *testing.B) {
		for b.Loop() {
			if _, err := ReadCatalog(path); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
			before := heap()
			c, err := ReadCatalog(path)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(heap()-before)/1500, "B/type")
			for _, name := range c.Resources() {
				if _, err := c.Resource(name); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(heap()-before)/1500, "read-B/type")
			runtime.KeepAlive(c)
		}
	})
	b.Run("schema", func(b *testing.B) {
		c, err := ReadCatalog(path)
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for b.Loop() {
			if _, err := c.Resource(c.Resources()[n%1500]); err != nil {
				b.Fatal(err)
			}
			n++
		}
	})
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkRead measures sequential calls to a provider that does nothing.
func BenchmarkRead(b *testing.B) {
	dir, err := os.MkdirTemp("", "atoll-p")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	h, err := New(Config{Directory: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	path, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	i, _, err := h.Open(b.Context(), Binary{Name: "fake", Path: path}, fakeSettings("6"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := read(b.Context(), i, ""); err != nil {
			b.Fatal(err)
		}
	}
}
