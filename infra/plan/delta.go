package plan

// delta is the difference of two values, with those of the values within. Both the stored and the
// rendered form of a change are made from it.
type delta struct {
	// sign is '+', '-', '~', or ' ' if nothing changes.
	sign          byte
	path          string
	name          string // name of an attribute, or key in a map
	before, after *node
	// children are the differences within. A '~' has children only if both values are lists or both
	// are objects.
	children []*delta
}

// diff compares two values. It returns nil if both are null.
func diff(before, after *node, path string) *delta {
	if before.null() && after.null() {
		return nil
	}
	d := &delta{before: before, after: after, path: path}
	switch {
	case before.null():
		d.sign = '+'
	case after.null():
		d.sign = '-'
	case before.equal(after):
		d.sign = ' '
	default:
		d.sign = '~'
	}
	kind := before
	if before.null() || d.sign == '~' && after.kind == unknownNode {
		kind = after
	}
	if d.sign == '~' && before.kind != after.kind {
		if after.kind == unknownNode && (before.kind == listNode || before.kind == objectNode) {
			// Show the prior value once more.
			d.children = diff(before, before, path).children
		}
		return d
	}
	switch kind.kind {
	case objectNode:
		d.diffMembers()
	case listNode:
		d.diffElements()
	}
	return d
}

// diffMembers compares by name. Names are sorted on both sides.
func (d *delta) diffMembers() {
	var names [2][]string
	var of [2][]*node
	for i, n := range []*node{d.before, d.after} {
		if !n.null() {
			names[i], of[i] = n.names, n.children
		}
	}
	shape := d.after
	if d.after.null() {
		shape = d.before
	}
	d.children = make([]*delta, 0, max(len(names[0]), len(names[1])))
	for i, j := 0, 0; i < len(names[0]) || j < len(names[1]); {
		var name string
		var before, after *node
		switch {
		case j >= len(names[1]) || i < len(names[0]) && names[0][i] < names[1][j]:
			name, before, i = names[0][i], of[0][i], i+1
		case i >= len(names[0]) || names[1][j] < names[0][i]:
			name, after, j = names[1][j], of[1][j], j+1
		default:
			name, before, after, i, j = names[0][i], of[0][i], of[1][j], i+1, j+1
		}
		if one := diff(before, after, shape.memberPath(d.path, name)); one != nil {
			one.name = name
			d.children = append(d.children, one)
		}
	}
}

// diffElements pairs equal elements in order, so that an element inserted at the front does not
// make all others look changed. Between equal elements, objects are compared pairwise; other values
// are removed and added.
func (d *delta) diffElements() {
	var before, after []*node
	set := false
	if !d.before.null() {
		before, set = d.before.children, d.before.shape.set()
	}
	if !d.after.null() {
		after, set = d.after.children, d.after.shape.set()
	}
	i, j := 0, 0
	upTo := func(m, n int) {
		for !set && i < m && j < n && before[i].kind == objectNode && after[j].kind == objectNode {
			d.addElement(before[i], after[j], j)
			i, j = i+1, j+1
		}
		for ; i < m; i++ {
			d.addElement(before[i], nil, i)
		}
		for ; j < n; j++ {
			d.addElement(nil, after[j], j)
		}
	}
	for _, pair := range matchEqual(before, after) {
		upTo(pair[0], pair[1])
		d.addElement(before[i], after[j], j)
		i, j = i+1, j+1
	}
	upTo(len(before), len(after))
}

// addElement appends the difference of one element, even if the element is null.
func (d *delta) addElement(before, after *node, at int) {
	path := elementPath(d.path, at)
	one := diff(before, after, path)
	if one == nil {
		one = &delta{sign: ' ', path: path, before: before, after: after}
		if before == nil {
			one.sign = '+'
		} else if after == nil {
			one.sign = '-'
		}
	}
	d.children = append(d.children, one)
}

// maxCells bounds the table of the longest common subsequence. Beyond it, elements in the middle
// are paired by position.
const maxCells = 1 << 20

// matchEqual pairs as many equal elements as possible, in ascending order on both sides.
func matchEqual(a, b []*node) [][2]int {
	var head, tail [][2]int
	start, endA, endB := 0, len(a), len(b)
	for start < endA && start < endB && a[start].equal(b[start]) {
		head = append(head, [2]int{start, start})
		start++
	}
	for endA > start && endB > start && a[endA-1].equal(b[endB-1]) {
		endA, endB = endA-1, endB-1
		tail = append(tail, [2]int{endA, endB})
	}
	head = append(head, longestCommonSubsequence(a[start:endA], b[start:endB], start)...)
	for i := len(tail) - 1; i >= 0; i-- {
		head = append(head, tail[i])
	}
	return head
}

func longestCommonSubsequence(a, b []*node, offset int) [][2]int {
	var out [][2]int
	if len(a)*len(b) > maxCells {
		for i := 0; i < len(a) && i < len(b); i++ {
			if a[i].equal(b[i]) {
				out = append(out, [2]int{offset + i, offset + i})
			}
		}
		return out
	}
	width := len(b) + 1
	table := make([]int32, (len(a)+1)*width) // lengths for the suffixes that start at i and j
	same := make([]bool, len(a)*len(b))
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if same[i*len(b)+j] = a[i].equal(b[j]); same[i*len(b)+j] {
				table[i*width+j] = table[(i+1)*width+j+1] + 1
			} else {
				table[i*width+j] = max(table[(i+1)*width+j], table[i*width+j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case same[i*len(b)+j]:
			out = append(out, [2]int{offset + i, offset + j})
			i, j = i+1, j+1
		case table[(i+1)*width+j] >= table[i*width+j+1]:
			i++
		default:
			j++
		}
	}
	return out
}

// each visits the smallest meaningful differences. A value that is added or removed is one
// difference, whatever it contains. The resource itself is not visited. within is the chain of
// enclosing differences.
func (d *delta) each(within []*delta, visit func(within []*delta, d *delta)) {
	switch {
	case d == nil || d.sign == ' ':
	case d.path == "" || d.sign == '~' && len(d.children) > 0 && d.after.kind != unknownNode:
		within = append(within, d)
		for _, one := range d.children {
			one.each(within, visit)
		}
	default:
		visit(within, d)
	}
}

// specPath returns the path in the object's spec at which a value is configured. A block type that
// allows several blocks accepts a single one as an object: alone is the path for that form, without
// the index of the only list element. known is false within a set of several elements, because the
// original position of a set's element is lost.
func specPath(within []*delta, d *delta) (at, alone string, known bool) {
	for i, in := range within {
		one := d
		if i+1 < len(within) {
			one = within[i+1]
		}
		step := one.name
		switch {
		case in.after.kind == listNode && len(in.after.children) == 1:
			at += one.path[len(in.path):]
			continue
		case in.after.kind == listNode && in.after.shape.set():
			return "", "", false
		case in.after.kind == listNode:
			step = one.path[len(in.path):]
		case in.after.shape.keyed():
			step = "[" + step + "]"
		case at != "":
			step = "." + step
		}
		at, alone = at+step, alone+step
	}
	return at, alone, true
}

func (d *delta) action() FieldAction {
	switch {
	case d.after != nil && (d.after.kind == unknownNode || d.after.kind == secretNode && d.after.secret == ""):
		return FieldUnknown
	case d.sign == '+':
		return FieldAdded
	case d.sign == '-':
		return FieldRemoved
	}
	return FieldChanged
}
