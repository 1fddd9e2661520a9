/* images.h: embeds a file of compiled kernels (an archive, a source text) in the library with .incbin. */
#ifndef SATCHEL_GPU_IMAGES_H
#define SATCHEL_GPU_IMAGES_H

#ifdef __APPLE__ /* Mach-O: a section belongs to a segment, and C names begin with an underscore */
#define SATCHEL_IMAGE(name, file)                                                                                      \
    __asm__(".const_data\n.balign 64\n_satchel_image_" #name ":\n.incbin \"" file "\"\n.balign 64\n.text\n");          \
    extern const unsigned char satchel_image_##name[];
#elif defined(_WIN32) /* COFF */
#define SATCHEL_IMAGE(name, file)                                                                                      \
    __asm__(".section .rdata,\"dr\"\n.balign 64\n.globl satchel_image_" #name "\nsatchel_image_" #name                 \
            ":\n.incbin \"" file "\"\n.text\n");                                                                       \
    extern const unsigned char satchel_image_##name[];
#else
#define SATCHEL_IMAGE(name, file)                                                                                      \
    __asm__(".section .rodata\n.balign 64\nsatchel_image_" #name ":\n.incbin \"" file "\"\n.balign 64\n.previous\n");  \
    extern const unsigned char satchel_image_##name[];
#endif

#endif
