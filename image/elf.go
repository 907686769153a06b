package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
)

// stripELF drops what a 64-bit program or library does not need to run: debug
// information, relocations of it, and the static symbol table. The Python
// library shrinks from 213 MB to 25. What the loader maps stays where it is.
func stripELF(data []byte) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return nil, errors.New("it is not a little-endian 64-bit program")
	}
	if f.Type != elf.ET_DYN && f.Type != elf.ET_EXEC {
		return data, nil // an object file is nothing without its symbols
	}
	headers := make([]elf.Section64, len(f.Sections))
	var old elf.Header64
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, &old); err != nil {
		return nil, err
	}
	table := bytes.NewReader(data)
	if _, err := table.Seek(int64(old.Shoff), 0); err != nil {
		return nil, err
	}
	if err := binary.Read(table, binary.LittleEndian, headers); err != nil {
		return nil, fmt.Errorf("its section table is cut short: %w", err)
	}

	// Everything mapped ends before end; what follows is for tools.
	var end uint64
	for _, p := range f.Progs {
		end = max(end, p.Off+p.Filesz)
	}
	if end > uint64(len(data)) {
		return nil, errors.New("it is cut short")
	}
	names := []byte{0}
	keep := []elf.Section64{{}}
	index := map[uint32]uint32{} // old section number to new
	for i, s := range f.Sections {
		if s.Flags&elf.SHF_ALLOC == 0 || s.Type != elf.SHT_NOBITS && s.Offset+s.FileSize > end {
			continue
		}
		index[uint32(i)] = uint32(len(keep))
		h := headers[i]
		h.Name = uint32(len(names))
		names = append(append(names, s.Name...), 0)
		keep = append(keep, h)
	}
	for i := range keep[1:] {
		h := &keep[i+1]
		h.Link = index[h.Link]
		if elf.SectionFlag(h.Flags)&elf.SHF_INFO_LINK != 0 {
			h.Info = index[h.Info]
		}
	}
	keep = append(keep, elf.Section64{
		Name: uint32(len(names)), Type: uint32(elf.SHT_STRTAB), Off: end,
		Size: uint64(len(names) + len(".shstrtab") + 1), Addralign: 1,
	})
	names = append(append(names, ".shstrtab"...), 0)

	out := bytes.NewBuffer(make([]byte, 0, int(end)+len(names)+len(keep)*64+8))
	out.Write(data[:end])
	out.Write(names)
	for out.Len()%8 != 0 {
		out.WriteByte(0)
	}
	old.Shoff, old.Shnum, old.Shstrndx = uint64(out.Len()), uint16(len(keep)), uint16(len(keep)-1)
	if err := binary.Write(out, binary.LittleEndian, keep); err != nil {
		return nil, err
	}
	var header bytes.Buffer
	if err := binary.Write(&header, binary.LittleEndian, old); err != nil {
		return nil, err
	}
	copy(out.Bytes(), header.Bytes())
	return out.Bytes(), nil
}
