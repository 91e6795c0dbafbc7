package snapshot

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
)

// What the scan of a stream may keep of one page, and how far apart the parts of one page may lie.
const (
	maxRootPage   = 1 << 20  // of the page with etcd's dozen buckets, small ones inside it included
	maxLeafSpan   = 64 << 20 // of a page with large values: etcd's requests end at a few megabytes
	maxPages      = 1 << 26  // 256 GiB of 4 KiB pages
	maxTreeHeight = 64
)

// bbolt's page layout, native-endian: id 8, flags 2, count 2, overflow 4, then elements of 16 bytes. A leaf element is flags 4, position 4, key size 4,
// value size 4; a branch element is position 4, key size 4, page 8; positions count from the element itself (bbolt, internal/common/page.go). A bucket's value
// is its root page 8 and a sequence 8, and for root 0 a whole page inside.
const (
	pageHeaderBytes  = 16
	pageElementBytes = 16
	bucketBytes      = 16
	branchPageFlag   = 0x01
	leafPageFlag     = 0x02
	bucketLeafFlag   = 0x01
)

// pageScan reads an etcd backend file that passes by once, from front to end, and finds out what backend.meta finds in a file at rest: above all the revision
// of the content, which no message of etcd tells. The pages come in the order of their numbers, not of the tree, and many belong to no tree any more. So it
// notes of every page what the way down the right edge would need (8 bytes), and walks that way at the end.
type pageScan struct {
	pageBytes int
	root      uint64
	high      uint64 // pages from here on do not exist
	page      []byte // the page that is arriving
	id        uint64 // its number
	edge      []int64
	buckets   map[uint64]bucketPage
	children  []uint64 // of the root page when it is no leaf
	metas     map[uint64]backendMeta
	wants     wantHeap
	err       error
}

// bucketPage is what a leaf of the tree of buckets tells.
type bucketPage struct {
	keys, meta       uint64 // root pages of the two buckets; 0: inside this page, or not here
	hasKeys, hasMeta bool
	lastKey          int64       // of a bucket "key" inside this page
	metaHere         backendMeta // of a bucket "meta" inside this page
}

func newPageScan() *pageScan {
	return &pageScan{buckets: map[uint64]bucketPage{}, metas: map[uint64]backendMeta{}}
}

// Write takes the next bytes of the file. It never fails: what is wrong with the file is said by result.
func (s *pageScan) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0 && s.err == nil; {
		need := s.pageBytes
		if need == 0 {
			need = pageHeaderBytes + 64 // the first meta page tells the size of pages
		}
		n := min(len(rest), need-len(s.page))
		s.page = append(s.page, rest[:n]...)
		rest = rest[n:]
		if len(s.page) < need {
			break
		}
		if s.pageBytes == 0 {
			s.err = s.begin()
			continue
		}
		s.take()
		s.id, s.page = s.id+1, s.page[:0]
	}
	return len(b), nil
}

// begin reads the first meta page. The stream has the same state in both, written for this transaction alone (bbolt, tx.WriteTo).
func (s *pageScan) begin() error {
	m, err := parseBoltMeta(s.page[pageHeaderBytes:])
	if err != nil {
		return err
	}
	if m.pageSize < 512 || m.pageSize > 64<<10 || m.pageSize&(m.pageSize-1) != 0 || m.highWater > maxPages || m.root >= m.highWater {
		return fmt.Errorf("its first page tells of %d pages of %d bytes and root %d", m.highWater, m.pageSize, m.root)
	}
	s.pageBytes, s.root, s.high = int(m.pageSize), m.root, m.highWater
	s.edge = make([]int64, s.high)
	return nil
}

// take notes what the complete page tells.
func (s *pageScan) take() {
	if s.id >= s.high {
		return
	}
	s.serveWants()
	h := s.page
	id, flags, count, overflow := binary.NativeEndian.Uint64(h), binary.NativeEndian.Uint16(h[8:]), int(binary.NativeEndian.Uint16(h[10:])), binary.NativeEndian.Uint32(h[12:])
	span := (int64(overflow) + 1) * int64(s.pageBytes)
	// The pages behind one with large values have no header; what looks like one there is reached by no way from the root.
	if id != s.id || count == 0 || span > maxLeafSpan {
		return
	}
	switch flags {
	case branchPageFlag:
		s.takeBranch(count, span)
	case leafPageFlag:
		s.takeLeaf(count, span)
	}
}

func (s *pageScan) takeBranch(count int, span int64) {
	this, base := s.id, s.offset()
	last := int64(pageHeaderBytes + pageElementBytes*(count-1))
	if last+pageElementBytes > span {
		return
	}
	s.want(base+last, pageElementBytes, func(e []byte) {
		if child := binary.NativeEndian.Uint64(e[8:]); child > 1 && child < s.high {
			s.edge[this] = -int64(child)
		}
	})
	if this == s.root && span <= maxRootPage {
		s.want(base, int(span), func(page []byte) {
			for i := range count {
				s.children = append(s.children, binary.NativeEndian.Uint64(page[pageHeaderBytes+pageElementBytes*i+8:]))
			}
		})
	}
}

func (s *pageScan) takeLeaf(count int, span int64) {
	this, base := s.id, s.offset()
	last := int64(pageHeaderBytes + pageElementBytes*(count-1))
	if last+pageElementBytes > span {
		return
	}
	first := s.page[pageHeaderBytes:]
	if binary.NativeEndian.Uint32(first)&bucketLeafFlag != 0 {
		if span <= maxRootPage {
			s.want(base, int(span), func(page []byte) { s.buckets[this] = readBucketPage(page) })
		}
		return
	}
	if isMetaLeaf(s.page) && span <= maxRootPage {
		s.want(base, int(span), func(page []byte) { s.metas[this] = readMetaLeaf(page) })
		return
	}
	s.want(base+last, pageElementBytes, func(e []byte) {
		pos, size := int64(binary.NativeEndian.Uint32(e[4:])), binary.NativeEndian.Uint32(e[8:])
		if size < revisionBytes || last+pos+8 > span {
			return
		}
		s.want(base+last+pos, 8, func(k []byte) { s.edge[this] = max(0, int64(binary.BigEndian.Uint64(k))) })
	})
}

// isMetaLeaf recognises a page of the bucket "meta" by its first key: this is what etcd has had there, in this order, since 3.4.
func isMetaLeaf(page []byte) bool {
	e := page[pageHeaderBytes:]
	pos, size := uint64(binary.NativeEndian.Uint32(e[4:])), uint64(binary.NativeEndian.Uint32(e[8:]))
	if size > 32 || pos+size > uint64(len(e)) {
		return false
	}
	k := string(e[pos : pos+size])
	return k == "confState" || k == "consistent_index"
}

// offset is where the current page begins in the stream.
func (s *pageScan) offset() int64 { return int64(s.id) * int64(s.pageBytes) }

// leafElement returns an element of a whole leaf page; ok is false when it is not all there.
func leafElement(page []byte, i int) (key, value []byte, ok bool) {
	at := pageHeaderBytes + pageElementBytes*i
	if at+pageElementBytes > len(page) {
		return nil, nil, false
	}
	e := page[at:]
	pos, ksize, vsize := uint64(binary.NativeEndian.Uint32(e[4:])), uint64(binary.NativeEndian.Uint32(e[8:])), uint64(binary.NativeEndian.Uint32(e[12:]))
	if pos+ksize+vsize > uint64(len(e)) {
		return nil, nil, false
	}
	return e[pos : pos+ksize], e[pos+ksize : pos+ksize+vsize], true
}

func pageCount(page []byte) int {
	if len(page) < pageHeaderBytes {
		return 0
	}
	return int(binary.NativeEndian.Uint16(page[10:]))
}

func readBucketPage(page []byte) (b bucketPage) {
	for i := range pageCount(page) {
		name, value, ok := leafElement(page, i)
		if !ok || len(value) < bucketBytes {
			continue
		}
		root, inside := binary.NativeEndian.Uint64(value), value[bucketBytes:]
		switch string(name) {
		case "key":
			b.hasKeys, b.keys = true, root
			if n := pageCount(inside); root == 0 && n > 0 {
				k, _, _ := leafElement(inside, n-1)
				b.lastKey = int64(bigEndian(k))
			}
		case "meta":
			b.hasMeta, b.meta = true, root
			if root == 0 {
				b.metaHere = readMetaLeaf(inside)
			}
		}
	}
	return b
}

func readMetaLeaf(page []byte) (m backendMeta) {
	for i := range pageCount(page) {
		key, value, ok := leafElement(page, i)
		if !ok {
			continue
		}
		switch string(key) {
		case "consistent_index":
			m.consistentIndex = bigEndian(value)
		case "term":
			m.term = bigEndian(value)
		case "storageVersion":
			m.storageVersion = string(value)
		case "finishedCompactRev":
			m.compacted = int64(bigEndian(value))
			m.revision = max(m.revision, m.compacted)
		case "scheduledCompactRev":
			m.revision = max(m.revision, int64(bigEndian(value)))
		}
	}
	return m
}

// result is what the whole file holds: revision, last key, compacted revision, consistent index, term and storage version.
func (s *pageScan) result() (backendMeta, error) {
	switch {
	case s.err != nil:
		return backendMeta{}, s.err
	case s.pageBytes == 0 || s.id < s.high:
		return backendMeta{}, errors.New("it ends before its last page")
	}
	b, err := s.bucketTree()
	if err != nil {
		return backendMeta{}, err
	}
	m := b.metaHere
	if b.meta != 0 {
		var ok bool
		if m, ok = s.metas[b.meta]; !ok {
			return backendMeta{}, fmt.Errorf("page %d is not that of bucket \"meta\"", b.meta)
		}
	}
	if m.lastKey = b.lastKey; b.keys != 0 {
		if m.lastKey, err = s.rightEdge(b.keys); err != nil {
			return backendMeta{}, err
		}
	}
	m.revision = max(1, m.revision, m.lastKey) // as backend.meta has it
	return m, nil
}

// bucketTree joins what the live leaves of the tree of buckets say. It is two levels high at most: etcd has a dozen buckets.
func (s *pageScan) bucketTree() (all bucketPage, err error) {
	leaves := s.children
	if len(leaves) == 0 {
		leaves = []uint64{s.root}
	}
	for _, id := range leaves {
		b, ok := s.buckets[id]
		if !ok {
			return all, fmt.Errorf("page %d is not one of buckets", id)
		}
		if b.hasKeys {
			all.hasKeys, all.keys, all.lastKey = true, b.keys, b.lastKey
		}
		if b.hasMeta {
			all.hasMeta, all.meta, all.metaHere = true, b.meta, b.metaHere
		}
	}
	if !all.hasKeys || !all.hasMeta {
		return all, errors.New("it has no bucket \"meta\" or \"key\", so it is not etcd's")
	}
	return all, nil
}

// rightEdge follows the last child of each page down to the last key.
func (s *pageScan) rightEdge(id uint64) (revision int64, err error) {
	for range maxTreeHeight {
		if id >= s.high {
			return 0, fmt.Errorf("page %d lies beyond the end", id)
		}
		if s.edge[id] >= 0 {
			return s.edge[id], nil // 0: the bucket is empty
		}
		id = uint64(-s.edge[id])
	}
	return 0, errors.New("its tree of keys has no end")
}

// want has f called with n bytes at an offset not before the current page: at once when this page has them all, else when they have passed.
func (s *pageScan) want(offset int64, n int, f func([]byte)) {
	at := offset - s.offset()
	switch {
	case at < 0: // only in a page that is none of the tree's
		return
	case at+int64(n) <= int64(len(s.page)):
		f(s.page[at : at+int64(n)])
		return
	}
	w := &want{next: offset, left: n, done: f}
	s.feed(w)
}

// feed gives w what this page has of it, and keeps w for later pages if that was not all.
func (s *pageScan) feed(w *want) {
	at := w.next - s.offset()
	if at < int64(len(s.page)) {
		n := min(w.left, len(s.page)-int(at))
		w.got = append(w.got, s.page[at:int(at)+n]...)
		w.next, w.left = w.next+int64(n), w.left-n
	}
	if w.left == 0 {
		w.done(w.got)
		return
	}
	heap.Push(&s.wants, w)
}

func (s *pageScan) serveWants() {
	for len(s.wants) > 0 && s.wants[0].next < s.offset()+int64(len(s.page)) {
		s.feed(heap.Pop(&s.wants).(*want))
	}
}

// want is bytes of a later page that somebody waits for.
type want struct {
	next int64 // offset of what is still to come
	left int
	got  []byte
	done func([]byte)
}

// wantHeap is ordered by the offset that is needed next.
type wantHeap []*want

func (h wantHeap) Len() int           { return len(h) }
func (h wantHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h wantHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *wantHeap) Push(x any) { *h = append(*h, x.(*want)) }

// Pop implements heap.Interface.
func (h *wantHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	*h = old[:len(old)-1]
	return w
}
