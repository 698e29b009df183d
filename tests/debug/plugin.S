/* A plug-in whose function calls malloc from a frame of FRAME bytes. Two of them differ in nothing
 * else: the call returns to the same place of each. */
    .text
    .globl plugged
    .type plugged, @function
plugged:
    .cfi_startproc
    subq $FRAME, %rsp
    .cfi_def_cfa_offset FRAME + 8
    call malloc@PLT
    addq $FRAME, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size plugged, . - plugged
    .section .note.GNU-stack, "", @progbits
