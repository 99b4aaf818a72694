package plan

// delta is what becomes of one value, and of the values within. Both what is stored and
// what is shown of a difference come from it.
type delta struct {
	// sign is '+', '-', '~', or ' ' if nothing changes.
	sign          byte
	path          string
	name          string // of an attribute, or the key in a map
	before, after *node
	// of is what is within: of '~' only if both are lists or both objects.
	of []*delta
}

// compared compares. It is nil if neither is there.
func compared(before, after *node, path string) *delta {
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
			// What there was is shown for the last time.
			d.of = compared(before, before, path).of
		}
		return d
	}
	switch kind.kind {
	case objectNode:
		d.members()
	case listNode:
		d.elements()
	}
	return d
}

// members compares name by name. Names are sorted on both sides.
func (d *delta) members() {
	var names [2][]string
	var of [2][]*node
	for i, n := range []*node{d.before, d.after} {
		if !n.null() {
			names[i], of[i] = n.names, n.of
		}
	}
	shape := d.after
	if d.after.null() {
		shape = d.before
	}
	d.of = make([]*delta, 0, max(len(names[0]), len(names[1])))
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
		if one := compared(before, after, shape.memberPath(d.path, name)); one != nil {
			one.name = name
			d.of = append(d.of, one)
		}
	}
}

// elements matches what is equal, in order: an element that was put in at the front does not make
// all others look changed. Between what is equal, objects are compared with each other, and
// other things come and go.
func (d *delta) elements() {
	var before, after []*node
	set := false
	if !d.before.null() {
		before, set = d.before.of, d.before.shape.set()
	}
	if !d.after.null() {
		after, set = d.after.of, d.after.shape.set()
	}
	i, j := 0, 0
	upTo := func(m, n int) {
		for !set && i < m && j < n && before[i].kind == objectNode && after[j].kind == objectNode {
			d.element(before[i], after[j], j)
			i, j = i+1, j+1
		}
		for ; i < m; i++ {
			d.element(before[i], nil, i)
		}
		for ; j < n; j++ {
			d.element(nil, after[j], j)
		}
	}
	for _, pair := range matched(before, after) {
		upTo(pair[0], pair[1])
		d.element(before[i], after[j], j)
		i, j = i+1, j+1
	}
	upTo(len(before), len(after))
}

// element adds one; one that is null is there all the same.
func (d *delta) element(before, after *node, at int) {
	path := elementPath(d.path, at)
	one := compared(before, after, path)
	if one == nil {
		one = &delta{sign: ' ', path: path, before: before, after: after}
		if before == nil {
			one.sign = '+'
		} else if after == nil {
			one.sign = '-'
		}
	}
	d.of = append(d.of, one)
}

// mostCells bounds the table for the longest common subsequence. Beyond it, elements in the middle are
// matched by their place.
const mostCells = 1 << 20

// matched pairs equal elements, in ascending order on both sides: as many as possible.
func matched(a, b []*node) [][2]int {
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
	head = append(head, longest(a[start:endA], b[start:endB], start)...)
	for i := len(tail) - 1; i >= 0; i-- {
		head = append(head, tail[i])
	}
	return head
}

func longest(a, b []*node, offset int) [][2]int {
	var out [][2]int
	if len(a)*len(b) > mostCells {
		for i := 0; i < len(a) && i < len(b); i++ {
			if a[i].equal(b[i]) {
				out = append(out, [2]int{offset + i, offset + i})
			}
		}
		return out
	}
	width := len(b) + 1
	table := make([]int32, (len(a)+1)*width) // of what follows i and j
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

// each visits the smallest differences that have a meaning: a value that comes or goes is one, whatever
// is in it. The resource itself is not a value of its own. What a difference is within goes before it.
func (d *delta) each(within []*delta, visit func(within []*delta, d *delta)) {
	switch {
	case d == nil || d.sign == ' ':
	case d.path == "" || d.sign == '~' && len(d.of) > 0 && d.after.kind != unknownNode:
		within = append(within, d)
		for _, one := range d.of {
			one.each(within, visit)
		}
	default:
		visit(within, d)
	}
}

// written is where, in an object's spec, it is written what a value comes to, as a field is named there. Where there could be several
// blocks a single one may also be written as an object: then it is at alone, which has no index for the only element of a list. It is
// not known of an element of a set, unless it is the only one: which of those that are written it is has been forgotten.
func written(within []*delta, d *delta) (at, alone string, known bool) {
	for i, in := range within {
		one := d
		if i+1 < len(within) {
			one = within[i+1]
		}
		step := one.name
		switch {
		case in.after.kind == listNode && len(in.after.of) == 1:
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

func (d *delta) kind() Kind {
	switch {
	case d.after != nil && (d.after.kind == unknownNode || d.after.kind == secretNode && d.after.secret == ""):
		return Unknown
	case d.sign == '+':
		return Added
	case d.sign == '-':
		return Removed
	}
	return Changed
}
