package cliview

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// BenchmarkShow shows a plan of ten thousand changes, and measures the cost to fetch, read and write each of
// them.
func BenchmarkShow(b *testing.B) {
	const changes = 10_000
	c := created("a")
	item, err := json.Marshal(&c)
	if err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		next := ""
		if from+pageSize < changes {
			next = strconv.Itoa(from + pageSize)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[`, next)
		for i := range pageSize {
			if i > 0 {
				io.WriteString(w, ",")
			}
			w.Write(item)
		}
		io.WriteString(w, "]}")
	}))
	defer server.Close()
	s, err := Connect(&rest.Config{Host: server.URL})
	if err != nil {
		b.Fatal(err)
	}
	s.Namespace, s.Out, s.Err = "shop", io.Discard, io.Discard
	p := &v1alpha1.Plan{}
	p.Name, p.Status.Phase, p.Status.Summary.Create = "p", v1alpha1.PlanPlanned, changes
	for _, format := range []string{"", "wide", "json"} {
		b.Run("format="+format, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.ShowPlan(b.Context(), p, Filter{}, format); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/changes, "ns/change")
		})
	}
}
