package search

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Table has the rows of the clusters that print a kind with the same columns.
type Table struct {
	Kind       schema.GroupKind
	Namespaced bool
	Columns    []string
	Rows       []Row // by namespace, name and cluster, with a cell for each column
}

// Tables joins the rows of clusters. Clusters of different versions may print a kind with other columns, and a short name may
// be another kind in each. wide adds the columns that kubectl shows with -o wide.
func Tables(found []Found, wide bool) (all []Table) {
	for _, f := range found {
		if len(f.Rows) == 0 {
			continue
		}
		shown := shownColumns(f.Columns, wide)
		table := Table{Kind: f.Kind.GroupKind(), Namespaced: f.Namespaced}
		for _, i := range shown {
			table.Columns = append(table.Columns, f.Columns[i].Name)
		}
		at := slices.IndexFunc(all, func(t Table) bool { return t.Kind == table.Kind && slices.Equal(t.Columns, table.Columns) })
		if at < 0 {
			at, all = len(all), append(all, table)
		}
		for _, row := range f.Rows {
			all[at].Rows = append(all[at].Rows, row.only(shown))
		}
	}
	for _, t := range all {
		slices.SortStableFunc(t.Rows, func(a, b Row) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Cluster, b.Cluster))
		})
	}
	return all
}

func shownColumns(columns []metav1.TableColumnDefinition, wide bool) (shown []int) {
	for i, c := range columns {
		if wide || c.Priority == 0 {
			shown = append(shown, i)
		}
	}
	return shown
}

// only returns a row with the cells of some columns. A row that lacks a cell has nil there.
func (r Row) only(columns []int) Row {
	cells := make([]any, len(columns))
	for i, at := range columns {
		if at < len(r.Cells) {
			cells[i] = r.Cells[at]
		}
	}
	r.Cells = cells
	return r
}

// Objects returns the objects of all clusters, by namespace, name and cluster.
func Objects(found []Found) (all []unstructured.Unstructured) {
	for _, f := range found { // by cluster
		all = append(all, f.Objects...)
	}
	slices.SortStableFunc(all, func(a, b unstructured.Unstructured) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return all
}
