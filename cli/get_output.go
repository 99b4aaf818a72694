package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/atoll-dev/atoll/fleet/search"
)

// printFound prints the objects of all answers. The error is about the clusters without one, which are named first.
func printFound(out, notes io.Writer, output string, q search.Query, found []search.Found) error {
	var silent, without []string
	for _, f := range found {
		switch {
		case errors.Is(f.Err, search.ErrNoKind):
			without = append(without, f.Cluster)
		case f.Err != nil:
			silent = append(silent, onOneLine(fmt.Sprintf("cluster %s: %v", f.Cluster, f.Err)))
		}
	}
	count, err := printObjects(out, output, found)
	if err != nil {
		return err
	}
	for _, line := range silent {
		fmt.Fprintln(notes, line)
	}
	answered := len(found) - len(silent)
	where := ""
	if q.Namespace != "" && slices.ContainsFunc(found, func(f search.Found) bool { return f.Namespaced }) {
		where = " in " + q.Namespace + " namespace"
	}
	switch {
	case answered > 0 && len(without) == answered:
		return fmt.Errorf("no cluster that answered serves the kind %q: add its group, as in certificates.cert-manager.io, or list the groups of a cluster with "+
			"`kubectl get --raw /apis/fleet.atoll.dev/v1alpha1/clusters/%s/proxy/apis`", q.Kind, without[0])
	case len(silent) > 0:
		return fmt.Errorf("%d of %d clusters did not answer", len(silent), len(found))
	case count == 0 && q.Name != "":
		return fmt.Errorf("%s %q not found%s of the %d clusters", q.Kind, q.Name, where, answered)
	case count == 0 && !q.Objects:
		fmt.Fprintln(notes, "No resources found"+where)
	}
	return nil
}

// printObjects prints the objects that were found, and returns how many there are.
func printObjects(out io.Writer, output string, found []search.Found) (count int, err error) {
	if output == "yaml" || output == "json" {
		items := []any{}
		for _, object := range search.Objects(found) {
			items = append(items, object.Object)
		}
		return len(items), printStructured(out, output, map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	}
	for i, table := range search.Tables(found, output == "wide") {
		count += len(table.Rows)
		if output == "name" {
			printNames(out, table)
			continue
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := printTable(out, table); err != nil {
			return count, err
		}
	}
	return count, nil
}

func printNames(out io.Writer, table search.Table) {
	kind := strings.ToLower(table.Kind.Kind)
	if table.Kind.Group != "" {
		kind += "." + table.Kind.Group
	}
	for _, row := range table.Rows {
		fmt.Fprintln(out, onOneLine(kind+"/"+row.Name))
	}
}

// printTable prints the cluster and the namespace of each row, and the columns of the clusters.
func printTable(out io.Writer, table search.Table) error {
	aligned := newTable(out)
	head := []string{"CLUSTER"}
	if table.Namespaced {
		head = append(head, "NAMESPACE")
	}
	for _, column := range table.Columns {
		head = append(head, onOneLine(strings.ToUpper(column)))
	}
	fmt.Fprintln(aligned, strings.Join(head, "\t"))
	for _, row := range table.Rows {
		line := []string{row.Cluster}
		if table.Namespaced {
			line = append(line, onOneLine(row.Namespace))
		}
		for _, cell := range row.Cells {
			line = append(line, cellText(cell))
		}
		fmt.Fprintln(aligned, strings.Join(line, "\t"))
	}
	return aligned.Flush()
}

// cellText formats a cell as kubectl does.
func cellText(cell any) string {
	if cell == nil {
		return "<none>"
	}
	text := fmt.Sprint(cell)
	if first, _, more := strings.Cut(text, "\n"); more {
		text = first + "..."
	}
	return onOneLine(text)
}

// onOneLine removes control characters. A cluster may send any text: they would act on the terminal, and a tab would break the
// table.
func onOneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
